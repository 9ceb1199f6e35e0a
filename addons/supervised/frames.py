"""What made-up tools do and how users ask for it: tables for addons/supervised/made_tools.py.

A row is a line and those that are indented after it. Columns are separated by |, choices within a column by / (sentences)
or spaces (names). In texts, {n} is the thing that a set of tools is about, {p} its plural, {v} a value, {l} the argument's
name in words. More are in addons/supervised/phrases.py.
"""

from __future__ import annotations


def rows(table: str) -> list[list[str]]:
    """The rows of a table, as the texts of their columns; an indented line goes on with the row before it."""
    lines = table.strip().replace("\n    ", " ").splitlines()
    return [[column.strip() for column in line.split("|")] for line in lines]


# Names of tools | how users say it | how descriptions say it | what was done
ACTIONS = """
find search look_up lookup get fetch query show | find/look for/search for/show me/get me/look up/I am looking
    for/I need to see/fetch/Is there/Do you have/give me/Can I see/pull up | find/search for/look up/get/search all
    {p} for/retrieve | found
add create make new register enter | add/create/make/enter/set up/register/I need a new entry for/put in |
    add/create/make/register/enter | added
reserve schedule arrange hold | reserve/schedule/arrange/keep/hold/I want to reserve/I would like to have |
    reserve/schedule/arrange/keep | reserved
cancel delete remove drop discard | cancel/delete/remove/drop/get rid of/I no longer need/take out/scrap |
    cancel/delete/remove/throw away | cancelled
update change edit modify adjust | change/update/edit/modify/correct/adjust/make changes to |
    change/update/edit/modify | changed
send forward deliver dispatch ship | send/deliver/forward/ship/dispatch/send out | send/deliver/forward/dispatch |
    sent
record note track write_down save | record/note/write down/keep track of/save/make a note of | record/write
    down/note/save | recorded
buy purchase acquire get_new | buy/purchase/get/I want to buy/we need/we are out of/get us | buy/purchase/get new
    | bought
start open launch begin run activate | start/open/launch/begin/run/activate/switch on/turn on |
    start/open/begin/switch on | started
stop close end halt deactivate | stop/close/end/shut/shut down/switch off/turn off/halt | stop/close/end/switch
    off | stopped
check inspect verify examine test | check/inspect/have a look at/verify/examine/What about/How is/test |
    check/inspect/tell the state of/examine | checked
rate review score grade | rate/review/grade/give a grade to/score | rate/review/grade | rated
assign give hand_over allocate | assign/give/hand over/allocate/pass on | assign/hand over/give somebody | assigned
move transfer shift relocate bring | move/transfer/shift/bring/take/carry | move/transfer/bring to another place |
    moved
print export download | print/export/download/I need a copy of/print out | print/export/make a copy of | printed
share publish post announce | share/publish/post/announce/tell everybody about | share/publish/announce | published
remind alert notify | remind me of/alert me about/notify me of/do not let me forget/let me know about | remind the
    user of/notify the user of | noted
estimate calculate compute quote | estimate/calculate/work out/How much is/What would it cost for/give me the
    price of | estimate/calculate the cost of/tell the price of | estimated
count total number_of | count/How many are there of/tell me the number of/add up/How much is left of | count/tell
    how many there are of | counted
approve accept confirm | approve/accept/confirm/say yes to/agree to/give the green light to |
    approve/accept/confirm | approved
reject decline refuse deny | reject/decline/refuse/turn down/say no to | reject/refuse/turn down | rejected
lock block freeze protect | lock/block/freeze/protect/make nobody use | lock/block/protect | locked
unlock release free | unlock/release/free/set free/open up again | unlock/release/free | unlocked
repair fix mend service | repair/fix/mend/have somebody look at/service | repair/mend/have somebody repair | repaired
clean wash tidy | clean/wash/tidy up/clean up | clean/wash/tidy | cleaned
rent hire lend borrow | rent/hire/lend out/borrow/I would like to borrow | rent/hire/lend/borrow | rented
return give_back refund | return/give back/bring back/refund/take back | return/give back/take back | returned
list show_all all overview | list/show all/show me all/What is there of/give me a list of/list all | list/show
    all/give an overview of | listed
extend renew prolong | extend/renew/prolong/keep longer/make longer | extend/renew/prolong | extended
pick choose select | pick/choose/select/take/I take/go for | choose/select/pick | chosen
invite welcome admit | invite/let in/admit/welcome | invite/admit/let in | invited
mark flag label tag | mark/flag/label/tag/put a mark on | mark/flag/label | marked
archive store keep | archive/store/put away/keep/file away | archive/store/put away | archived
explain describe summarize | explain/describe/tell me about/sum up/What do you know about/Who or what is |
    explain/describe/sum up | described
watch read view perform | watch/read/view/I want to see/I want to hear/let me have | view/open and read/perform |
    viewed
pack wrap load | pack/wrap/load/get ready | pack/wrap/load | packed
water feed serve | serve/feed/water/look after | serve/feed/water | served
measure weigh read_out | measure/weigh/read/take the measure of | measure/weigh/read | measured
plan prepare organise | plan/prepare/organise/get ready | plan/prepare/organise | planned
"""
# Names | kind of value | descriptions | phrases
SLOTS = """
name customer client user guest member who owner person recipient contact buyer seller | person | who it is
    for/name of the person/the {n}'s owner/full name/last name/who asked | for {v}/of {v}/for {v}/on behalf of {v}/{v}
    asked for it
to recipient receiver to_whom | person | who gets it/to whom | to {v}/for {v}
employee worker driver helper teacher staff | person | who does it/the person in charge | by {v}/with {v}/{v} does it
city place location town where destination address target area site spot shop store | place | where it is/the
    place/name of the town/where to/street and number | in {v}/at {v}/near {v}/in {v}/to {v}
origin from_place start source departure | place | where it begins/from where | from {v}/starting in {v}
date day when on_date due start_date end_date deadline | date | the day/which day/the date, as YYYY-MM-DD/when it
    is/date of the {n} | on {v}/for {v}/on {v}/by {v}/{v}
time hour at start_time clock | time | the time/time, as HH:MM/when it starts/at what time | at {v}/at {v}/from
    {v}/by {v}
count quantity amount number pieces units how_many copies | whole | how many/number of {p}/how many of them/the
    quantity | {v} of them/{v} pieces/{v} times/{v} copies/x{v}
people persons guests group_size seats places | whole | number of people/size of the group/how many people | for
    {v} people/for {v} persons/for {v}/we are {v} people/with {v} seats
days nights weeks months years minutes hours_long duration length | whole | how long/how many days/for how
    long/number of {l} | for {v} {l}/{v} {l}/for {v} {l} long
limit max_results top maximum | whole | how many at most/the number of results/at most so many | at most {v}/the
    first {v}/up to {v}/the last {v}
price cost budget max_price sum amount fee | decimal | the price/price in euros/what it costs/the sum in dollars |
    for {v} euros/for {v} dollars/at {v}/for {v}/below {v} euros
weight size length_in width height distance | decimal | the weight/its size/in metres/in kilograms | of {v}
    kilograms/with {v} metres/weighing {v}/{v} long
reference code id number serial key pin account card | code | the reference/the code/its number/the customer's
    number | with {l} {v}/{l} {v}/under {v}/{v}/with the number {v}
email mail login user username | login | the e-mail address/the login/user name | to {v}/for {v}/from {v}
note comment reason message remark text subject description details | note | a note/the reason/why/what it says/in
    a few words/what is wrong | because of {v}/: {v}/with the note "{v}"/saying "{v}"/, {v}/that says "{v}"
title label topic name heading | title | the title/what it is called/the new name | called {v}/with the title
    {v}/named {v}/"{v}"/titled "{v}"
item product goods article material | item | which item/the product/the material | with {v}/of {v}/containing
    {v}/made of {v}
topic category kind type tag theme genre | word | the topic/what kind/the category/which sort | about {v}/on
    {v}/of the kind {v}/in {v}
room floor hall gate platform line lane section aisle | whole | which {l}/the number of the {l} | in {l} {v}/to
    {l} {v}/on {l} {v}/{l} {v}
version edition chapter page level step | whole | which {l}/the {l} | {l} {v}/of {l} {v}/for {l} {v}
"""
# Names | values | phrases
CHOICES = """
size format | small medium large huge | in {v}/in size {v}/{v}
colour color shade | red blue green yellow black white grey | in {v}/in {v}/{v}/coloured {v}
level priority importance | low medium high urgent | with {v} priority/with {l} {v}/{v} {l}/as {v}
quality class grade | basic standard premium first second | in {v} class/{v}/as {v}
format type file_type | pdf csv text json html | as {v}/as a {v} file/in {v}
direction side | left right up down forward backward | to the {v}/{v}/towards the {v}
status state stage | open closed pending done active | that is {v}/with status {v}/as {v}/{v} only
day_part part_of_day slot | morning noon afternoon evening night | in the {v}/for the {v}/{v}
season | spring summer autumn winter | in {v}/for {v}/for the {v}
weekday day | Monday Tuesday Wednesday Thursday Friday Saturday Sunday | on {v}/for {v}/{v}
currency | euro dollar pound yen franc | in {v}/paid in {v}
language | Dutch French Polish Korean Arabic Greek Italian | in {v}/in {v}/{v}
unit | gram ounce pound kilogram litre gallon | in {v}/counted in {v}
method payment way channel | cash card cheque transfer phone letter | by {v}/with {v}/by {v}
speed pace | slow normal fast | {v}/at {v} speed
kind type sort variety | sweet salty sour spicy plain mixed | {v}/of the {v} kind/, {v}
sort_by order_by | name price date size rating | by {v}/sorted by {v}/ordered by {v}
"""
# Name | phrases where it is true | where it is false
FLAGS = """
gift | as a gift/it is a gift | it is no gift/not as a gift
express | by express/with express/as fast as possible | no express/without express/there is no hurry
private | in private/privately/only for me | not private/open to all/publicly
breakfast | with breakfast/including breakfast | without breakfast/no breakfast
insured insurance | with insurance/insured | without insurance/not insured
return_trip | there and back/with return | one way/without return
available | that is available/still available | even if not available
notify | and tell them/with a message to them | without telling them/and do not tell them
vegetarian | vegetarian/without meat | with meat/not vegetarian
important | it is important/important | it is not important/not important
paid | already paid/it is paid | not paid/not paid yet
repeat | every week/repeat it | only once/do not repeat it
confirmed | confirmed/it is confirmed | not confirmed/not confirmed yet
lights | with light/lights on | without light/lights off
force | by force/even if it is in use | without force/only if nobody uses it
"""
# Names | descriptions | arguments: names=kind=descriptions; … | sentences, {0} {1} … are the arguments
FRAMES = """
sell sale record_sale sold | Write down what was sold./Record a sale. | buyer customer who=person=who bought it;
    item product goods=item=what was sold; amount quantity count=whole=how many | {0} bought {2} {1}/{2} {1} went to
    {0}/we sold {2} {1} to {0}/sell {2} {1} to {0}/{2} {1} for {0}
donate donation gift_money | Record a donation./Somebody gave money. | donor name giver=person=who gave it; amount
    sum value=decimal=the amount in dollars | {0} donated {1} dollars/{0} gave {1} euros/{1} dollars came from
    {0}/note that {0} gave us {1}
wish request want ask_for | Note what somebody wants./Write down a wish. | name who customer=person=who wants it;
    item what wish=item=what is wanted; quantity? amount?=whole=how many | {0} wants {1}/{0} would like {2} {1}/{0}
    needs {1}/{0} asked for {2} {1}/put down {2} {1} for {0}/{2} {1} for {0}, please/add {1} for {0}
arrived incoming delivery_note unload | Note what has arrived./Take in new goods. | item goods product
    code=item=what arrived; count units amount=whole=number of units; sender? source? from_where?=place=where it comes
    from | {1} {0} arrived/{1} {0} came from {2}/{2} has sent {1} {0}/take in {1} {0}/we got {1} {0} from {2}/there
    are {1} new {0}
route way directions connection travel distance | The way between two places./Find how to get from one place to
    another./How far two places are apart. | start origin from_place departure=place=where it begins; end goal
    destination to_place target=place=where it ends | how do I get from {0} to {1}?/How far is it from {0} to {1}?/I
    want to go from {0} to {1}/show me the way from {0} to {1}/I am in {0} and must be in {1}/go to {1} from {0}/from
    {0} to {1}
tell message send_message notify write_to text inform | Send a message to somebody./Tell somebody something. |
    name recipient to who person=person=who gets it; message text words content=note=what to say | tell {0} that
    {1}/send {0} the message "{1}"/write to {0}: {1}/let {0} know: {1}/message {0}: {1}/"{1}" to {0}
mail email send_mail write_mail | Send an e-mail. | to address recipient=login=who gets it; subject title
    about=note=subject line | mail {0} with the subject "{1}"/write to {0} about {1}/send a mail to {0}, subject
    {1}/e-mail {0}, subject "{1}"
hand give assign allot | Give a {n} to somebody./Who gets which {n}. | id {n}_id number {n} code=code=which {n};
    name person who employee=person=who gets it | give {n} {0} to {1}/{1} gets {n} {0}/hand {0} to {1}/{n} {0} is for
    {1}/let {1} have {n} {0}/assign {0} to {1}
put move place bring store relocate | Put a {n} somewhere else./Move something to another place. | id {n} {n}_id
    item label code=code=which {n}; place to target shelf position=code=where it goes | put {0} into {1}/move {n} {0}
    to {1}/{0} has to go to {1}/{n} {0} belongs in {1}/bring {0} to {1}/{0} to {1}
remind reminder remember | Remind somebody of something. | what text about subject=note=what it is about; time at
    when=time=when to remind | remind me of {0} at {1}/at {1}, remind me: {0}/do not let me forget {0} at {1}/{0} at
    {1}
meet meeting plan_meeting visit | Plan a visit./Arrange to meet somebody. | who person with name=person=whom; time
    when at date=time=at what time; place? where?=place=where | meet {0} at {1}/I see {0} at {1} in {2}/{0} comes at
    {1}/plan a visit of {0} at {1}/put {0} down for {1} in {2}
cost price price_of quote offer | What something costs./Tell the price of an item. | item product what=item=the
    item; amount? count? quantity?=whole=how many | what do {1} {0} cost?/How much is {0}?/what is the price of {0}?/I
    need the price of {1} {0}/price of {1} {0}/How much would {1} {0} be?/what would {1} {0} cost?
set adjust set_value change_to turn | Set a {n} to a value./Change the value of a {n}. | what target {n} name
    which=word=which {n}; value to number setting level=decimal=the new value | set {0} to {1}/turn {0} to {1}/make
    {0} {1}/{0} should be at {1}/change {0} to {1}/{0}: {1}/I want {0} at {1}/put {0} on {1}
set_level level dim adjust change_level | Change how strong the {n} is./Set the {n} from 0 to 100. | level value
    amount percent=whole=0 to 100/the new value | set the {n} to {0}/turn the {n} to {0}/the {n} should be at {0}/make
    it {0}/{n} to {0}/put the {n} at {0}/bring the {n} to {0}
rate stars review give_stars | Rate something with stars. | title what name item=title=what is rated; stars rating
    points score=whole=the points | {1} stars for {0}/give {0} {1} stars/I rate {0} with {1}/{0} gets {1} points/{0}:
    {1} stars
rename call relabel | Give a {n} another name. | old name from_name {n}=title=the old name; new new_name
    to_name=title=the new name | rename {0} to {1}/{0} is now called {1}/call {0} {1} from now on/change the name of
    {0} to {1}/the {n} {0} shall be {1}
swap exchange replace | Put one thing in the place of another. | old first out item=item=what goes; new second
    in_its_place by=item=what comes in | replace {0} by {1}/swap {0} for {1}/take {1} in place of {0}/{1} instead of
    {0}/use {1}, not {0}
ill sick_note away unavailable | Note that somebody is ill or away. | name who person=person=who is away; why
    cause illness=word=why | {0} is ill: {1}/{0} is away because of {1}/{0} has {1} and stays at home/note that {0} is
    not here, {1}
fill pour add_amount top_up | Fill a {n}. | amount litres quantity=decimal=how much, in litres; {n} target into
    number=code=which {n} | put {0} litres into {n} {1}/fill {1} with {0} litres/{n} {1} needs {0} litres/{0} litres
    for {1}
borrow lend check_out_item take_home | Lend something to somebody. | what title item=title=what is lent; who name
    borrower=person=who takes it; days? length?=whole=for how many days | {1} borrows {0}/{1} takes {0} home/lend {0}
    to {1} for {2} days/{1} would like to have {0} for {2} days/give {0} to {1}
multiply times product calculate | Multiply two numbers. | a first x left=whole=the first number; b second y
    right=whole=the second number | what is {0} times {1}?/multiply {0} by {1}/{0} * {1}/How much is {0} times {1}?
add sum plus total | Add two numbers. | a first x=whole=the first number; b second y=whole=the second number |
    what is {0} plus {1}?/add {0} and {1}/{0} + {1}/How much is {0} and {1}?
measured reading enter_value log_value | Write down a measured value. | what name place sensor {n}=word=what was
    measured; value reading number amount=decimal=the value | {0} shows {1}/the value of {0} is {1}/{0} was {1}
    today/{1} for {0}/enter {1} for {0}/we measured {1} at {0}/write down {1} for {0}
produce yield gave output | Note how much a {n} gave. | {n} name who which=word=which {n}; amount value
    kilos=decimal=how much | {0} gave {1} kilograms/the {n} {0} made {1}/we got {1} from {0}/{1} kilograms came from
    {0}/{0}: {1} kilograms today
occupy settle move_in place_guest | Give somebody a place. | name person who=person=who comes; number place_number
    spot=whole=the number of the place | {0} gets number {1}/put {0} on place {1}/place {1} is for {0}/{0} takes
    number {1}
problem complain fault report_fault defect | Report a fault to somebody who mends it. | {n} id which code
    number=code=which {n}; what fault note problem=note=what is wrong | {n} {0} is broken: {1}/something is wrong with
    {0}: {1}/{0} has a fault, {1}/report {0}: {1}/{0}: {1}
progress done_so_far advance | Note how far something is. | what task name=note=what it is; percent part
    value=whole=how much is done, in percent | {0} is at {1} percent/we have done {1} percent of {0}/{1} percent of
    {0} are done/{0}: {1} percent
convert change_unit into_unit turn_into | Convert an amount into another unit./Say an amount in another unit. |
    amount value number quantity=decimal=the number; unit from_unit of source=choice:gram ounce pound stone kilogram
    tonne=unit of the number; target to_unit into to=choice:gram ounce pound stone kilogram tonne=unit of the result |
    what is {0} {1} in {2}?/turn {0} {1} into {2}/I have {0} {1}, how much is that in {2}?/{0} {1} to {2}/give me {0}
    {1} in {2}/change {0} {1} to {2}
exchange_money to_currency change_money | Change money into another currency. | sum money amount=decimal=how much;
    currency target into=choice:euro dollar pound yen franc peso krona=the other currency | change {0} to {1}/{0} in
    {1}, please/what do I get in {1} for {0}?/how much {1} is {0}?/{0} should become {1}
translate say_in in_language | Translate a text. | text words phrase what=note=the text; language into
    to=choice:Dutch French Polish Korean Arabic Greek Italian Danish=the other language | translate "{0}" into {1}/how
    do you say "{0}" in {1}?/what is {0} in {1}?/put {0} into {1}/say {0} in {1}
compare versus difference | Compare two {p}./Tell which of two {p} is better. | first a left this=title=the first;
    second b right that=title=the second | compare {0} with {1}/which is better, {0} or {1}?/{0} or {1}?/what is the
    difference between {0} and {1}?
define meaning explain_word dictionary | The meaning of a word./Look a word up. | word term what=word=the word |
    what does {0} mean?/define {0}/what is the meaning of {0}?/explain the word {0}/{0}: what is that?
sign_up join enrol register_for put_on_list | Put somebody on the list of a course./Sign somebody up. | name who
    person member=person=who takes part; course group what list=title=what for | sign {0} up for {1}/{0} joins {1}/put
    {0} on the list of {1}/{0} would like to take part in {1}/{0} wants to go to {1}/enrol {0} in {1}
leave drop_out sign_off | Take somebody off a list. | name who member=person=who leaves; list course
    what=title=which list | take {0} off {1}/{0} leaves {1}/{0} no longer wants {1}/strike {0} from {1}/{0} does not
    come to {1} any more
between range period_of history | The {p} of a time./What happened between two days. | first start since
    from_date=date=the first day; last end until to_date=date=the last day | {p} between {0} and {1}/what was there
    from {0} to {1}?/show {p} from {0} until {1}/list {p} since {0} and before {1}
paint colour dye | Give a thing another colour. | what item thing=item=what is painted; colour color
    shade=choice:red blue green yellow white black brown grey=the new colour | paint the {0} {1}/the {0} should be
    {1}/make the {0} {1}/dye the {0} {1}/{1} for the {0}/we need the {0} in {1}
heat cook bake dry | Heat something for some time. | what food item=item=what it is; minutes time
    duration=whole=how long; degrees? heat?=whole=how hot | heat the {0} for {1} minutes/{0} for {1} minutes at {2}
    degrees/the {0} needs {1} minutes/put the {0} in for {1} minutes at {2}
earns wage set_pay pay_rise | Set what somebody earns. | name employee who=person=who; wage pay amount=decimal=the
    new wage | {0} earns {1} from now on/pay {0} {1}/{0} gets {1} a month/raise the wage of {0} to {1}/set the pay of
    {0} to {1}
subscribe add_reader newsletter | Send the newsletter to somebody. | address mail who=login=who reads it; {n} list
    topic=word=which one | subscribe {0} to {1}/{0} wants the news about {1}/add {0} to the readers of {1}/send {1} to
    {0} every week
vote cast choose_side | Note how somebody votes. | name voter who=person=who votes; option choice
    for_what=title=for what | {0} votes for {1}/{0} is for {1}/the vote of {0} goes to {1}/put {0} down as a vote for
    {1}
who_has holder whose find_owner | Tell who has a {n}. | {n} id number code label=code=which {n} | who has {n}
    {0}?/whose is {0}?/with whom is {n} {0}?/where has {0} gone?/who took {0}?
where_is locate position find_place | Tell where something is./Where a {n} stands. | what name item {n}=title=what
    is looked for | where is {0}?/I cannot find {0}/where do you keep {0}?/where have you put {0}?/I am looking for
    {0}/show me where {0} is
is_free availability free vacant | Whether a {n} is free on a day. | {n} name which id=title=which {n}; date day
    when=date=the day | is {0} free on {1}?/can I have {0} on {1}?/{0} on {1}: is it possible?/is somebody using {0}
    on {1}?
guests party_of reserve_for seat | Keep seats for a group. | name who for_whom=person=who asked; people count
    guests=whole=how many come; time when at=time=when they come | {1} people at {0}'s request, {2}/{0} comes with {1}
    people at {2}/{0}, {1} people, {2}/keep {1} seats for {0} at {2}/{1} of us at {2}, the name is {0}
race_time finish_time result | Write down a result. | name runner who player=person=who; value time result
    score=decimal=the result | {0} came in at {1}/{0} has {1} points/{1} for {0}/the result of {0} is {1}/{0} needed
    {1} minutes
"""
