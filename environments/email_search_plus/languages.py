"""Words and sentences of email_search_plus in English, Korean and Arabic: vocabulary, templates, and how words are found.

Templates avoid the usual mistakes of generated sentences: Korean particles depend on the sound before them (`josa`), Arabic
sentences name no gender, and amounts are chosen so that the unit has the same form for all of them.

`stems` makes queries match the index. FTS5 splits at spaces, but a Korean noun carries its particle (예산은) and an Arabic
noun its article (الميزانية). A trigram tokenizer would miss words of two syllables, which most Korean nouns are. Therefore
the most frequent particles and articles are removed from index and query, and Korean words of a query match as prefixes,
which covers the remaining endings.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from environments.email_search import mailbox

Value = Callable[[Random], str]


class Matter(NamedTuple):
    """What a fact is about: how questions ask for it, and how its values are drawn."""

    name: str
    asks: str  # Korean: the interrogative; Arabic: the interrogative with its pronoun
    value: Value
    was: str = ""  # Korean: the interrogative's past


class Language(NamedTuple):
    """The vocabulary and the templates of a language; `fill` fills the templates."""

    people: list[str]
    projects: Sequence[str]
    matters: list[Matter]
    months: Sequence[str]
    subject: str
    statements: tuple[str, ...]
    requests: tuple[str, ...]
    chatter: tuple[str, ...]
    openers: tuple[str, ...]
    closers: tuple[str, ...]
    proposal: tuple[str, ...]
    decision: tuple[str, ...]
    attached: tuple[str, ...]
    file: str  # without version and extension
    questions: dict[str, str]  # by kind


def josa(word: str, after_consonant: str, after_vowel: str) -> str:
    """The particle that follows a word; 으로 becomes 로 after ㄹ, too. Digits count as they are read in Korean."""
    last = word[-1]
    if "가" <= last <= "힣":
        final = (ord(last) - ord("가")) % 28
    else:
        final = {"0": 21, "1": 8, "3": 16, "6": 1, "7": 8, "8": 8}.get(last, 0)
    return after_vowel if final == 0 or (after_consonant == "으로" and final == 8) else after_consonant


def fill(template: str, **fields: str) -> str:
    """A template with its fields filled in; 은/는 and similar pairs after a field become the right particle."""
    text = template.format(**fields)
    return re.sub(r"(\S)\((은|이|을|으로)/(는|가|를|로)\)", lambda m: m[1] + josa(m[1], m[2], m[3]), text)


def _pairs(firsts: Sequence[str], lasts: Sequence[str], joint: str) -> list[str]:
    return [f"{first}{joint}{last}" for first in firsts for last in lasts]


def _english() -> Language:
    matters = [Matter(name, "", value) for name, value in mailbox.MATTERS.items()]
    return Language(
        people=_pairs(mailbox.FIRST_NAMES, mailbox.LAST_NAMES, " "),
        projects=mailbox.PROJECTS,
        matters=matters,
        months=mailbox.MONTHS,
        subject="{project} {matter}",
        statements=mailbox.STATEMENTS,
        requests=mailbox.REQUESTS,
        chatter=mailbox.CHATTER,
        openers=mailbox.OPENERS,
        closers=("Best regards.", "Let me know what you think.", "More in our next meeting.", "See you on Monday."),
        proposal=(
            "My proposal for the {project} {matter}: {value}.",
            "For the {matter} of {project} I propose {value}.",
        ),
        decision=("We all agree to the proposal of {person}.", "The proposal of {person} it is."),
        attached=(
            "I attach the file about the {matter} for {project}.",
            "The {project} {matter} is in the attachment.",
        ),
        file="{project}_{matter}",
        questions={
            "sender": "What is the {matter} for {project} according to {sender}?",
            "month": "What was the {matter} for {project} in {month} {year}?",
            "latest": "What is the latest {matter} for {project}?",
            "thread": "Which {matter} for {project} was agreed in the thread that {sender} started?",
            "attachment": "Which file did {sender} send about the {matter} for {project}?",
        },
    )


def _korean() -> Language:
    cities = "서울 부산 대구 인천 광주 대전 울산 수원 제주 춘천 전주 강릉".split()
    companies = "한빛상사 대명물산 미래산업 청솔전자 동해무역 신화테크 백두건설 금강유통 세종정보 남산식품".split()
    return Language(
        people=_pairs(
            "김 이 박 최 정 강 조 윤 장 임 한 오".split(),
            "민수 서연 지훈 하은 도윤 수빈 준호 예진 현우 유나 성민 지영 태현 은주 동욱 혜진".split(),
            "",
        ),
        projects=(
            "팔콘 오리온 아틀라스 혜성 등대 남극성 수정 지평선 무지개 은하 "
            "태백 한라 설악 봉황 해솔 여명 산호 새벽별 두루미 솔바람"
        ).split(),
        matters=[
            Matter("예산", "얼마입니까", lambda rng: f"{rng.randrange(1000, 10000)}달러", "얼마였습니까"),
            Matter("회의실", "몇 호입니까", lambda rng: f"{rng.randrange(100, 1000)}호", "몇 호였습니까"),
            Matter(
                "마감일", "언제입니까", lambda rng: f"{rng.randrange(1, 13)}월 {rng.randrange(1, 29)}일", "언제였습니까"
            ),
            Matter("공급업체", "어디입니까", lambda rng: rng.choice(companies), "어디였습니까"),
            Matter("행사 장소", "어디입니까", lambda rng: rng.choice(cities), "어디였습니까"),
            Matter("계약 번호", "무엇입니까", lambda rng: f"C{rng.randrange(100, 1000)}", "무엇이었습니까"),
            Matter("인원", "몇 명입니까", lambda rng: f"{rng.randrange(10, 100)}명", "몇 명이었습니까"),
            Matter("견적", "얼마입니까", lambda rng: f"{rng.randrange(100, 1000)}유로", "얼마였습니까"),
        ],
        months=[f"{number}월" for number in range(1, 13)],
        subject="{project} {matter}",
        statements=(
            "{project} 프로젝트의 {matter}(은/는) {value}입니다.",
            "{project} 프로젝트의 {matter}(이/가) {value}(으로/로) 변경되었습니다.",
            "{project} 프로젝트의 {matter}(을/를) {value}(으로/로) 정했습니다.",
        ),
        requests=(
            "{project} 프로젝트의 {matter}(을/를) 알려 주시겠습니까?",
            "{project} 프로젝트의 {matter}에 대해 아시는 분 계십니까?",
        ),
        chatter=(
            "{project} 프로젝트의 {matter}(은/는) 아직 정해지지 않았습니다.",
            "회의 후에 {project} 프로젝트의 {matter}에 대해 이야기합시다.",
        ),
        openers=("메일 감사합니다.", "답장이 늦어 죄송합니다.", "요청하신 내용을 보내 드립니다.", "팀과 확인했습니다."),
        closers=(
            "감사합니다.",
            "궁금한 점이 있으시면 연락 주세요.",
            "다음 주에 사무실에 복귀합니다.",
            "의견 부탁드립니다.",
        ),
        proposal=(
            "{project} 프로젝트의 {matter}(으로/로) {value}(을/를) 제안합니다.",
            "저는 {project} 프로젝트의 {matter}에 대해 {value}(을/를) 제안합니다.",
        ),
        decision=("{person}님의 제안으로 결정했습니다.", "모두 {person}님의 제안에 동의합니다."),
        attached=(
            "{project} 프로젝트의 {matter}에 관한 파일을 첨부합니다.",
            "첨부 파일에 {project} 프로젝트의 {matter}(이/가) 정리되어 있습니다.",
        ),
        file="{project}_{matter}",
        questions={
            "sender": "{sender}님에 따르면 {project} 프로젝트의 {matter}(은/는) {asks}?",
            "month": "{year}년 {month}에 {project} 프로젝트의 {matter}(은/는) {was}?",
            "latest": "가장 최근 메일에 따르면 {project} 프로젝트의 {matter}(은/는) {asks}?",
            "thread": "{sender}님이 시작한 메일 대화에서 {project} 프로젝트의 {matter}(은/는) 결국 어떻게 결정되었습니까?",
            "attachment": "{sender}님이 {project} 프로젝트의 {matter}에 관해 보낸 파일은 무엇입니까?",
        },
    )


def _arabic() -> Language:
    months = "يناير فبراير مارس أبريل مايو يونيو يوليو أغسطس سبتمبر أكتوبر نوفمبر ديسمبر".split()
    cities = "القاهرة بيروت عمان تونس الرباط دمشق بغداد الدوحة مسقط الكويت الرياض دبي".split()
    companies = "الأفق النخيل الواحة المنارة الرواد السلام الفجر الياسمين البحار الصقر".split()
    return Language(
        people=_pairs(
            "أحمد سارة يوسف ليلى عمر فاطمة خالد مريم حسن نور طارق هدى سامي رانيا كريم دينا".split(),
            "خليل منصور حداد ناصر عيسى سالم زيدان فارس شاهين بركات درويش عوض".split(),
            " ",
        ),
        projects=(
            "فالكون أوريون أطلس الشهاب المنار الزيتون الأرز النسيم الغدير المرجان "
            "القمر الجسر اللؤلؤ الربيع السحاب النجم الصنوبر الشروق البستان الميناء"
        ).split(),
        matters=[
            # Whole hundreds: after them the counted noun is the same for every amount.
            Matter("ميزانية", "ما هي", lambda rng: f"{rng.randrange(10, 100) * 100} دولار"),
            Matter("قاعة اجتماعات", "ما هي", lambda rng: f"القاعة {rng.randrange(100, 1000)}"),
            Matter("موعد تسليم", "ما هو", lambda rng: f"{rng.randrange(1, 29)} {rng.choice(months)}"),
            Matter("مورد", "من هو", lambda rng: f"شركة {rng.choice(companies)}"),
            Matter("مكان اجتماع", "ما هو", lambda rng: rng.choice(cities)),
            Matter("رقم عقد", "ما هو", lambda rng: f"C{rng.randrange(100, 1000)}"),
            Matter("عدد موظفي", "ما هو", lambda rng: f"{rng.randrange(11, 100)} موظفا"),
            Matter("عرض سعر", "ما هو", lambda rng: f"{rng.randrange(1, 100) * 100} يورو"),
        ],
        months=months,
        subject="{matter} مشروع {project}",
        statements=(
            "{matter} مشروع {project}: {value}.",
            "اتفقنا على ما يلي بشأن {matter} مشروع {project}: {value}.",
            "نود إبلاغكم بأن {matter} مشروع {project} {pronoun} {value}.",
        ),
        requests=("هل لديكم معلومات عن {matter} مشروع {project}؟", "نحتاج إلى معلومات عن {matter} مشروع {project}."),
        chatter=("لم يتقرر شيء بعد بشأن {matter} مشروع {project}.", "سنتحدث عن {matter} مشروع {project} بعد الاجتماع."),
        openers=("شكرا على رسالتكم.", "أعتذر عن تأخر الرد.", "إليكم المعلومات المطلوبة.", "تحققنا من الأمر مع الفريق."),
        closers=(
            "مع أطيب التحيات.",
            "سأعود إلى المكتب الأسبوع المقبل.",
            "في انتظار ردكم.",
            "سنتابع في الاجتماع القادم.",
        ),
        proposal=("اقتراحي بشأن {matter} مشروع {project}: {value}.", "أقترح بشأن {matter} مشروع {project}: {value}."),
        decision=("اتفقنا على اقتراح {person}.", "نوافق جميعا على اقتراح {person}."),
        attached=("أرفقت ملفا بشأن {matter} مشروع {project}.", "تجدون في المرفقات ملفا عن {matter} مشروع {project}."),
        file="{matter}_مشروع_{project}",
        questions={
            "sender": "{asks} {matter} مشروع {project} بحسب {sender}؟",
            "month": "{asks} {matter} مشروع {project} في رسالة {month} {year}؟",
            "latest": "{asks} {matter} مشروع {project} وفق أحدث رسالة؟",
            "thread": "علام استقر الرأي بشأن {matter} مشروع {project} في المحادثة التي بدأت برسالة {sender}؟",
            "attachment": "ما اسم الملف المرفق برسالة {sender} بشأن {matter} مشروع {project}؟",
        },
    )


LANGUAGES: dict[str, Callable[[], Language]] = {"en": _english, "ko": _korean, "ar": _arabic}

COPULA = re.compile(r"(?<=\w)(?:이었습니까|이었습니다|였습니까|였습니다|입니까|입니다|이에요|예요)(?!\w)")
# Longest first. A noun must keep two syllables, so that 회의 (meeting) is not read as 회 with the particle 의.
PARTICLE = re.compile(
    r"(?<=[가-힣]{2})(?:에게서|에게|에서|으로|부터|까지|이다|님의|님이|님은|님|은|는|이|가|을|를|의|에|로|와|과|도|만)(?!\w)"
)
ARTICLE = re.compile(r"(?<!\w)(?:وال|بال|كال|فال|ال|لل)(?=[\u0621-\u064a]{3})")
MARKS = re.compile(r"[\u064b-\u065f\u0670\u0640]")  # vowel signs, and the stretching stroke
LETTERS = str.maketrans("أإآىة٠١٢٣٤٥٦٧٨٩", "\u0627\u0627\u0627\u064a\u06470123456789")  # spellings that people mix


def unified(text: str) -> str:
    """A text in a single spelling: composed Hangul, Arabic without vowel signs and with one form of alef, Western digits."""
    return MARKS.sub("", unicodedata.normalize("NFC", text)).translate(LETTERS)


def stems(text: str) -> str:
    """A text as it is indexed and searched: Korean words without their particle, Arabic words without the article."""
    return ARTICLE.sub("", PARTICLE.sub("", COPULA.sub("", unified(text))))


def is_korean(word: str) -> bool:
    return any("가" <= letter <= "힣" for letter in word)
