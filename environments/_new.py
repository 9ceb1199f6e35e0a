"""Creates a new task to edit: a copy of environments/_template.py that works, its data, a rubric for judges and a preset.

    python -m environments._new my_task      # or: make new-task NAME=my_task

It writes environments/my_task.py, capitals.json and rubric.md in tasks_data/my_task/, and tasks_data/my_task.yaml. They pass
`make check-task NAME=my_task` unchanged, and `make train TASK=my_task` trains on them. An unusable name is refused with a
sentence and exit code 2. A failure on the way leaves nothing behind.
"""

from __future__ import annotations

import argparse
import json
import keyword
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 40  # characters of a name
CAPITALS = """
Albania Tirana, Algeria Algiers, Angola Luanda, Argentina Buenos_Aires, Armenia Yerevan, Australia Canberra,
Austria Vienna, Azerbaijan Baku, Bahrain Manama, Bangladesh Dhaka, Belarus Minsk, Belgium Brussels, Bhutan Thimphu,
Botswana Gaborone, Brazil Brasília, Bulgaria Sofia, Cambodia Phnom_Penh, Cameroon Yaoundé, Canada Ottawa,
Chad N'Djamena, Chile Santiago, China Beijing, Colombia Bogotá, Croatia Zagreb, Cuba Havana, Cyprus Nicosia,
Denmark Copenhagen, Ecuador Quito, Egypt Cairo, Eritrea Asmara, Estonia Tallinn, Ethiopia Addis_Ababa, Fiji Suva,
Finland Helsinki, France Paris, Gabon Libreville, Georgia Tbilisi, Germany Berlin, Ghana Accra, Greece Athens,
Guinea Conakry, Guyana Georgetown, Haiti Port-au-Prince, Honduras Tegucigalpa, Hungary Budapest, Iceland Reykjavík,
India New_Delhi, Indonesia Jakarta, Iran Tehran, Iraq Baghdad, Ireland Dublin, Italy Rome, Jamaica Kingston,
Japan Tokyo, Jordan Amman, Kazakhstan Astana, Kenya Nairobi, Kyrgyzstan Bishkek, Laos Vientiane, Latvia Riga,
Lebanon Beirut, Liberia Monrovia, Libya Tripoli, Lithuania Vilnius, Madagascar Antananarivo, Malawi Lilongwe,
Malaysia Kuala_Lumpur, Maldives Malé, Mali Bamako, Malta Valletta, Mauritania Nouakchott, Moldova Chișinău,
Mongolia Ulaanbaatar, Montenegro Podgorica, Morocco Rabat, Mozambique Maputo, Namibia Windhoek, Nepal Kathmandu,
New_Zealand Wellington, Nicaragua Managua, Niger Niamey, Nigeria Abuja, North_Macedonia Skopje, Norway Oslo,
Oman Muscat, Pakistan Islamabad, Paraguay Asunción, Peru Lima, Philippines Manila, Poland Warsaw, Portugal Lisbon,
Qatar Doha, Romania Bucharest, Rwanda Kigali, Saudi_Arabia Riyadh, Senegal Dakar, Serbia Belgrade,
Sierra_Leone Freetown, Slovakia Bratislava, Slovenia Ljubljana, Somalia Mogadishu, South_Korea Seoul,
South_Sudan Juba, Spain Madrid, Sudan Khartoum, Suriname Paramaribo, Sweden Stockholm, Switzerland Bern,
Syria Damascus, Tajikistan Dushanbe, Thailand Bangkok, Togo Lomé, Tunisia Tunis, Turkey Ankara,
Turkmenistan Ashgabat, Uganda Kampala, Ukraine Kyiv, Uruguay Montevideo, Uzbekistan Tashkent, Venezuela Caracas,
Vietnam Hanoi, Zambia Lusaka, Zimbabwe Harare
"""


RUBRIC = """\
- EDIT: what makes one attempt better than another, for a model that compares them (score.judges.ruler).
- The right capital scores highest, no answer more than a wrong one.
- A capital that was looked up scores more than one that was guessed.
"""
PRESET = """\
# The preset of `make train TASK={name}`; what is not here has the default of steps/core/params.py.
task: {name}
seed: 1
policy: # EDIT: this one knows mails alone. Any model of the Hugging Face Hub, or one of steps/supervised/small_policy.py
  base_model: tasks_data/embedded_policy
scenarios: {{train: 60, val: 20, test: 20}}
rollout: {{scenarios: 8, attempts: 8, max_tokens: 64}}
score: {{judges: {{rule: 1}}}}
update: {{learning_rate: 0.0005}}
evaluate: {{max_tokens: 64}}
register: {{name: null}} # the task's name
train: {{iterations: 10, patience: 4}}
"""


def facts() -> dict[str, str]:
    """The data that a new task starts with: capitals by country."""
    pairs = (part.split() for part in CAPITALS.replace("\n", " ").split(","))
    return {country.replace("_", " "): capital.replace("_", " ") for country, capital in pairs}


def refusal(name: str, root: Path) -> str | None:
    """The reason why a task cannot have this name, or None."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name) or len(name) > LONGEST:
        return (
            f"{name!r} cannot be a task's name: choose up to {LONGEST} small letters, digits and underscores, beginning "
            "with a letter, and no word of Python's own, as in my_task"
        )
    places = [f"environments/{name}.py", f"environments/{name}", f"tasks_data/{name}", f"tasks_data/{name}.yaml"]
    for place in places:
        if (root / place).exists():
            return f"the name {name} is taken: {place} exists; choose another"
    return None


def source(name: str) -> str:
    """The source code of the new module."""
    text = (Path(__file__).parent / "_template.py").read_text(encoding="utf-8")
    title = "".join(part.capitalize() for part in name.split("_"))
    if keyword.iskeyword(title) or re.search(rf"\b{title}\b", text):
        title += "Task"  # `class Path(Env)` would hide the Path that the module uses
    return text.replace("_template", name).replace("class Template(Env)", f"class {title}(Env)")


def write(name: str, root: Path) -> list[Path]:
    """Write a new task and return its files. ValueError for an unusable name. On any failure no file is left behind."""
    if problem := refusal(name, root):
        raise ValueError(problem)
    folder, module = root / "tasks_data" / name, root / "environments" / f"{name}.py"
    preset = root / "tasks_data" / f"{name}.yaml"
    files = {
        module: source(name),
        folder / "capitals.json": json.dumps(facts(), ensure_ascii=False, indent=1) + "\n",
        folder / "rubric.md": RUBRIC,
        preset: PRESET.format(name=name),
    }
    folder.mkdir()
    try:
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
    except BaseException:
        shutil.rmtree(folder)
        module.unlink(missing_ok=True)
        preset.unlink(missing_ok=True)
        raise
    return list(files)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m environments._new", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("name", metavar="NAME", help="the task's name, as in my_task")
    name = parser.parse_args().name
    try:
        written = write(name, ROOT)
    except ValueError as problem:
        print(f"{problem}.", file=sys.stderr)
        return 2
    except OSError as problem:
        print(f"The task {name} could not be written, and nothing was: {problem}.", file=sys.stderr)
        return 1
    print("wrote " + ", ".join(str(path.relative_to(ROOT)) for path in written))
    print(f"edit them where it says EDIT; check: make check-task NAME={name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
