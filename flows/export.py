"""Export: writes a registered version to a folder, as adapter or merged into its base model, with its card; also to a hub.

    python -m flows.export --to out                              # the champion's PEFT folder, tokenizer and card
    python -m flows.export --version 3 --merged --to out         # whole weights, which need no PEFT
    HF_TOKEN=… python -m flows.export --to out --push me/agent   # and up to the Hugging Face Hub (HF_ENDPOINT names another)

README.md in the folder has the card, and says how to load the files with transformers and with vLLM. An adapter names its
base model by the absolute path of its folder, or by its name on the hub. Nothing is overwritten: the folder must not exist.
The token is read from the environment and written to no file.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

import environments
from steps.core import dotenv, params
from steps.core.errors import UserError
from steps.core.params import Policy
from steps.core.ports import every
from steps.core.terminal import command_parser, exit_code
from steps.policy.chat import Chat
from steps.policy.loading import load_chat, load_model, local
from steps.policy.served import HOST, SERVER, adapter_options, model_options
from steps.registry.model import fetched, policy_of, read_registry


def export(root: Path, settings: params.RegisterParams, name: str, to: Path, merged: bool = False) -> Any:
    """Write the files of the version `name` (a number or an alias) to a new folder; the registry's entry of it."""
    if to.exists():
        raise UserError(f"{to} exists: name a folder that does not, nothing is overwritten")
    model = read_registry(root, settings.model)
    version = model.version(name)
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".export-", dir=to.parent) as folder:
        result = fetched(model, version, Path(folder) / "adapter")
        policy = absolute(root, local(absolute(root, policy_of(version, result, settings.policy))))
        if merged:
            result = merge(policy, result, Path(folder) / "merged")
        else:  # the adapter's own configuration names the base model, with its revision
            path = result / "adapter_config.json"
            base = {"base_model_name_or_path": policy.base_model, "revision": policy.revision}
            path.write_text(json.dumps(json.loads(path.read_text()) | base, indent=2, sort_keys=True) + "\n")
        chat = load_chat(policy, environments.load(settings.task))
        chat.tokenizer.save_pretrained(result)
        readme = "There is no model card: the add-on report makes it, which addons/ does not have."
        for card in every("card"):  # an older version without one gets one made from its tags
            text = version.description if card.is_card(version.description) else card.card(version.tags)
            readme = card.readme(f"{model.name}, version {version.version}", version.tags, text, merged)
        (result / "README.md").write_text(f"{readme.rstrip()}\n\n{usage(policy, chat, model.name, merged)}")
        make_readable(result)
        result.rename(to)
    return version


def absolute(root: Path, policy: Policy) -> Policy:
    """The policy with a base model that loads from any folder: a folder by its absolute path, a name on a hub as it is."""
    folder = root / policy.base_model
    return policy.model_copy(update={"base_model": str(folder.resolve())}) if folder.is_dir() else policy


def merge(policy: Policy, adapter: Path, to: Path) -> Path:
    """Write the base model with the adapter merged into its weights to the folder `to`."""
    from peft import PeftModel

    PeftModel.from_pretrained(load_model(policy), str(adapter)).merge_and_unload().save_pretrained(to)
    return to


PEFT = """\
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = AutoModelForCausalLM.from_pretrained({base}, dtype={dtype}{revision})
model = PeftModel.from_pretrained(base, ".")
tokenizer = AutoTokenizer.from_pretrained(".")
"""
MERGED = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(".", dtype={dtype})
tokenizer = AutoTokenizer.from_pretrained(".")
"""


def usage(policy: Policy, chat: Chat, name: str, merged: bool) -> str:
    """The section of README.md that says how to load the files."""
    revision = f", revision={policy.revision!r}" if policy.revision else ""
    snippet = (MERGED if merged else PEFT).format(
        base=json.dumps(policy.base_model), dtype=json.dumps(policy.dtype), revision=revision
    )
    loaded = policy.model_copy(update={"base_model": ".", "revision": None}) if merged else policy
    words = model_options(loaded, chat) + (
        ["--served-model-name", name] if merged else adapter_options(policy, name, ".")
    )
    words += ["--chat-template", "chat_template.jinja"] if policy.chat_template and not merged else []
    libraries = "transformers" if merged else "transformers and PEFT"
    command = shlex.join(["python", "-m", SERVER, *words])
    return (
        f"## Use\n\nIn this folder, with {libraries}:\n\n```python\n{snippet}```\n\n"
        f"As an OpenAI-compatible server on this machine, with vLLM; the model is `{name}`:\n\n"
        f"```sh\n{command} --host {HOST}\n```\n"
    )


def make_readable(folder: Path) -> None:
    """Give every file the mode that a new one has here: some were written for their owner alone."""
    os.umask(mask := os.umask(0o077))
    for path in (folder, *folder.rglob("*")):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)


def hub_token() -> str:
    """The token of the Hub. UserError where there is none."""
    token = os.environ.get("HF_TOKEN", "").strip()
    if not token:
        raise UserError("HF_TOKEN is not set: --push needs a Hugging Face token that may write")
    return token


def push(folder: Path, repository: str, token: str) -> str:
    """Upload a folder to the Hub as a private model; its address. UserError if the Hub refuses it."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    hub = HfApi(token=token)
    try:
        hub.create_repo(repository, repo_type="model", private=True, exist_ok=True)
        message = "A version from the registry"
        return str(hub.upload_folder(repo_id=repository, folder_path=folder, commit_message=message))
    except HfHubHTTPError as problem:
        raise UserError(f"the hub refuses {repository}: {' '.join(str(problem).split())[:300]}") from None


def main(words: list[str] | None = None) -> int:
    parser = command_parser("flows.export", __doc__)
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="a new folder")
    parser.add_argument("--version", default="champion", metavar="N", help="a version, or an alias (default: champion)")
    parser.add_argument("--merged", action="store_true", help="write whole weights instead of the adapter")
    parser.add_argument("--push", metavar="USER/NAME", help="also upload it to the Hugging Face Hub")
    options = parser.parse_args(words)

    def work() -> None:
        dotenv.load(Path.cwd())
        token = hub_token() if options.push else ""
        settings = params.load("params.yaml", params.RegisterParams)
        version = export(Path.cwd(), settings, options.version, options.to, options.merged)
        print(f"{settings.model} version {version.version}: {options.to}")
        if options.push:
            try:
                print(push(options.to, options.push, token))
            except BaseException:
                print(f"{options.to} was written; the upload failed", file=sys.stderr)
                raise

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main())
