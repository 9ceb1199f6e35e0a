"""Chat templates with tools, for models whose own template leaves them out: the names that `policy.chat_template` takes.

All write tools and calls in the form of Qwen2.5 and Hermes, and differ in the marks of a turn, which are those that the
family was trained with. A model that never saw this form has to learn it; the prompt describes it. `smollm2` writes what has
no tools as the model's own template does.
"""

from __future__ import annotations

import json
from string import Template

TOOLS_INTRODUCTION = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
CALLS_INTRODUCTION = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)
# What stands in several templates, by the name that they have it under.
PARTS = {
    "tools": json.dumps(TOOLS_INTRODUCTION),
    "calls": json.dumps(CALLS_INTRODUCTION),
    "written": """{%- for call in message.tool_calls or [] -%}
{{- '\\n' if message.content or not loop.first -}}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' -}}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson -}}
{{- '}\\n</tool_call>' -}}
{%- endfor -%}""",  # the calls of an assistant's message
}
# As Qwen's own templates do: for Qwen, SmolLM2 and other models whose turns are between <|im_start|> and <|im_end|>.
CHATML = Template("""{%- set system = messages[0].content if messages[0].role == 'system' else '' -%}
{%- if system or tools -%}
{{- '<|im_start|>system\\n' + system -}}
{%- if tools -%}
{{- ('\\n\\n' if system else '') + $tools -}}
{%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}
{{- $calls -}}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' -}}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
{%- elif message.role != 'system' or not loop.first -%}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') -}}
$written
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
""").substitute(PARTS)
# The same with pictures, for Qwen2.5-VL, whose own template has no tools, and Qwen3-VL.
_SHOWN = """{%- macro shown(content) -%}
{%- if content is string -%}{{- content -}}{%- else -%}
{%- for part in content or [] -%}
{{- '<|vision_start|><|image_pad|><|vision_end|>' if part.type == 'image' else part.text -}}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
"""
CHATML_VISION = _SHOWN + CHATML.replace("(message.content or '')", "shown(message.content)").replace(
    "+ message.content +", "+ shown(message.content) +"
)
# The marks of a turn as variables, then the same for all: the system's text and the tools stand before the first message of
# the user, because these families have no turn of the system, or not one that tools stand in. A later system message is a
# turn of its own (Llama 3), or stands before what the user says next.
MARKED = Template("""{{- bos_token -}}
{%- set told = namespace(text=messages[0].content if messages[0].role == 'system' else '') -%}
{%- if tools -%}
{%- set told.text = told.text + ('\\n\\n' if told.text else '') + $tools -%}
{%- for tool in tools -%}{%- set told.text = told.text + '\\n' + (tool | tojson) -%}{%- endfor -%}
{%- set told.text = told.text + $calls -%}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}
{{- user + (told.text + '\\n\\n' if told.text else '') + message.content + end_of_user -}}
{%- set told.text = '' -%}
{%- elif message.role == 'system' and not loop.first -%}
{%- if system -%}{{- system + message.content + end_of_user -}}
{%- elif not loop.last and messages[loop.index0 + 1].role == 'user' -%}
{%- set told.text = told.text + ('\\n\\n' if told.text else '') + message.content -%}
{%- else -%}{{- user + message.content + end_of_user -}}{%- endif -%}
{%- elif message.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{- user -}}{%- else -%}{{- '\\n' -}}{%- endif -%}
{{- '<tool_response>\\n' + message.content + '\\n</tool_response>' -}}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- end_of_user -}}{%- endif -%}
{%- elif message.role == 'assistant' -%}
{{- assistant + (message.content or '') -}}
$written
{{- end_of_assistant -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- assistant -}}{%- endif -%}
""").substitute(PARTS)
LLAMA3 = (
    """{%- set system = '<|start_header_id|>system<|end_header_id|>\\n\\n' -%}
{%- set user = '<|start_header_id|>user<|end_header_id|>\\n\\n' -%}
{%- set assistant = '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -%}
{%- set end_of_user = '<|eot_id|>' -%}{%- set end_of_assistant = '<|eot_id|>' -%}
"""
    + MARKED
)
GEMMA = (
    """{%- set user = '<start_of_turn>user\\n' -%}{%- set assistant = '<start_of_turn>model\\n' -%}
{%- set end_of_user = '<end_of_turn>\\n' -%}{%- set end_of_assistant = '<end_of_turn>\\n' -%}
"""
    + MARKED
)
MISTRAL = (
    """{%- set user = '[INST] ' -%}{%- set assistant = '' -%}
{%- set end_of_user = ' [/INST]' -%}{%- set end_of_assistant = eos_token -%}
"""
    + MARKED
)
SMOLLM2_OWN = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""  # as the model brings it, letter by letter
SMOLLM2 = f"{{%- if tools -%}}\n{CHATML}{{%- else -%}}\n{SMOLLM2_OWN}{{%- endif -%}}\n"
