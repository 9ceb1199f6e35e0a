"""What users ask about things and how they put it: tables for addons/supervised/made_tools.py, in the form of frames.py."""

from __future__ import annotations

# Names | kind of value | questions; {v} is the thing
ATTRIBUTES = """
price cost fee | decimal | How much is {v}/What does {v} cost/How expensive is {v}
colour color | word | What colour is {v}/Which colour has {v}
height size length depth width | decimal | How large is {v}/How long is {v}/How tall is {v}/How big is {v}
weight | decimal | How heavy is {v}/What does {v} weigh
age | whole | How old is {v}
population capacity seats | whole | How many people live in {v}/How many fit into {v}/How many people are there in {v}
owner manager director founder author teacher leader boss president mayor inventor captain | person | Who owns
    {v}/Who runs {v}/Who leads {v}/Who is in charge of {v}/Who made {v}
address location site home | place | Where is {v}/Where do I find {v}/Where does {v} live
city town country region origin | place | Where does {v} come from/Where is {v} from/In which place is {v}
phone telephone extension | number | How do I call {v}/At what number do I reach {v}
email mail | login | How can I write to {v}/Where can I mail {v}
opening closing departure arrival start | time | When does {v} open/When does {v} close/When does {v} begin/When
    does {v} leave/From when on is there {v}
date birthday deadline due expiry | date | When is {v}/When was {v} born/When is {v} due/On which day is {v}
status state condition | word | How is {v}/What about {v}/How does it look with {v}
code number reference id | code | How is {v} numbered
language currency dialect | title | What do they speak in {v}/How do people pay in {v}
river lake mountain sea | title | Which water is near {v}
rating score points grade | decimal | How good is {v}/How well did {v} do
stock supply rest | whole | How many {v} are left/How much {v} do we have/Do we have {v}
distance | decimal | How far is {v}/How far away is {v}
material content ingredient taste | item | What is {v} made of/What is in {v}
floor gate platform lane shelf | whole | Where do I go for {v}
speed power output | decimal | How fast is {v}/How strong is {v}
title subject topic | title | What is {v} about/What is {v} called
winner champion hero | person | Who won {v}/Who is the best in {v}
goals wins games matches | whole | How often has {v} won/How many did {v} make
hint advice tip warning | note | What should I know about {v}/What do you advise for {v}
"""
# Names | descriptions
ANSWERS = """
answer answer give_answer | Give the answer. This ends the task.
submit submit_answer send_answer hand_in | Submit the final answer.
final_answer finish conclude done | Finish with the answer.
reply respond say tell_user | Reply to the user. This ends the task.
report report_answer give_result result | Report the result. This ends the episode.
"""
CHAT = """
Hello! | Hello! How can I help you?
Hi there | Hello! How can I help you?
Good morning. | Hello! How can I help you?
Thank you! | You are welcome.
Thanks, that is all. | You are welcome.
Great, thanks. | You are welcome.
Goodbye. | Goodbye!
"""
# What comes before or after a value, by the argument's name
LABELS = (
    "{l} {v}/{l} {v}/with {l} {v}/with the {l} {v}/{l}: {v}/using {v} as {l}/and the {l} is {v}/its {l} is {v}"
).split("/")
# System messages; {q} is a place of work, {t} a title, {w} a made-up word
GOALS = (
    "You are the assistant of a {q}./You help the people of {q} {t}./You work for a {q}./You look after the {p} of a "
    "{q}./You answer questions about {p}./You keep the books of the {q} {t}./You are a helpful assistant./Answer with "
    "the tools./You manage {p}./Look things up before you answer./You are {w}, the assistant of a {q}./Do what the "
    "user asks./You serve the customers of {t}./Find out what the user wants to know./Your job: {p} of all kinds./You "
    "take care of {p} and {w}./One call for each question."
).split("/")
# Wishes; {c} is the wish, {p} a name
WRAPPERS = (
    "{c}./{c}./{c}./{c}/please {c}./{c}, please./can you {c}?/could you {c}?/could you please {c}?/I want you to "
    "{c}./I would like you to {c}./I need to {c}./we have to {c}./hi, please {c}./{c} for me./{c} now./would you {c}? "
    "Thanks./{p} asks you to {c}./let us {c}./I have to {c}./we should {c}./{c} as soon as you can./you must "
    "{c}./hello! {c}./do this: {c}./next, {c}./{c}, thank you./we want to {c}."
).split("/")
