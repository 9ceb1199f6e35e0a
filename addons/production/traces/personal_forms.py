"""The patterns of personal data (addons/production/traces/personal.py): of numbers, of what a word announces, and of
what stands before a number that is harmless.
"""

# ruff: noqa: RUF001  # letters of other scripts, which are meant
from __future__ import annotations

import re

from addons.masking.readable import Words

CLUSTER = re.compile(r"[0-9](?<![A-Za-z0-9_][0-9])(?:[ ()./-]{0,2}\d){6,40}(?:x\d{1,6})?(?![A-Za-z0-9_])")
DATE = (
    r"(?:\d{1,2}[./-]\d{1,2}[./-]\d{2,4}|\d{4}[./-]\d{1,2}[./-]\d{1,2}|\d{4}年\d{1,2}月\d{1,2}日"
    r"|\d{1,2}(?:st|nd|rd|th)?\.? (?:de )?[^\W\d_]{3,10}\.?,? (?:de"
    r" )?\d{4}|[A-Z][a-z]{2,9}\.? \d{1,2}(?:st|nd|rd|th)?,? \d{4})"
)
# The word before a number that is harmless, and the one before a telephone number.
HARMLESS = re.compile(
    r"(?:\b(?:v(?:er(?:sion)?)?|release|build|part|sku|ean|upc|gtin|isbn"
    r"|issn|doi|orders?|invoices?|tickets?|tracking|room|score|commit"
    r"|rev(?:ision)?|models?|ports?|serial|timestamp|epoch|offset|pid"
    r"|tid|uid|lines?|rows?|pages?|rfc|iso|steps?|seed|size|bytes|count"
    r"|total|batch|lot|item|article|product|asin|barcode|case|issue|pr"
    r"|bug|ref(?:erence)?|shipment|parcel|flight|train|track|bestellung"
    r"|bestellnummer|rechnung|artikel|auftrag|commande|facture|pedido"
    r"|factura|fattura|ordine|заказ|version|package|chapter|section"
    r"|request|message|job|task|run|record|transaction|hash|block|tx"
    r"|date|time|since|at|from|until|duration|price|amount|budget)"
    r"(?:[ _-]?(?:id|ids|no|nr|num|numbers?|code|nummer|n°|№|was|is|of|the|to|ref))*[ .:=#\"'(/]{0,4}"
    r"|주문 ?번호\W{0,2}|订单号\W{0,2}|版本\W{0,2}|注文番号\W{0,2}|n°\s?|№\s?|#|\$|€|£|==|\bv|[A-Za-z0-9]-|::|/)\Z",
    re.IGNORECASE,
)
CALLED = re.compile(
    r"(?:\b(?:tel(?:ephone|efon\w*|éphone|éfono|efono)?|phone|mobile|mobil\w*"
    r"|cell(?:phone|ulare?)?|fax|whatsapp|signal|handy|portable|móvil"
    r"|(?:call|text|ring|reach|phone|dial|sms|whatsapp) (?:me|us|him|her|them)?|numéro|número|numero"
    r"|nummer|rufnummer|hotline|contact|chiam\w+|telefona\w*|liga\w*"
    r"|llam\w+|appele[rz]|anruf\w*|ruf\w*|bel|zadzwo\w+|dzwo\w+|poz\w+)\b"
    r"|телефон|звони|تلفن|شماره|موبایل|打电话|打給|номер|전화|연락처|휴대폰|핸드폰|電話|携帯|手机"
    r"|手機|电话|联系|هاتف|رقم|اتصل|جوال|موبايل|नंबर|फ़ोन|फोन|मोबाइल|คุยโทร|โทร|điện thoại|ফোন|নম্বর)"
    r"[^\d\n]{0,22}\Z",
    re.IGNORECASE,
)
PHONES = re.compile(  # what is a telephone number by itself
    r"\+\d[\d ()./-]{6,22}|00[1-9]\d[\d ()./-]{7,20}"
    r"|(?:1[-. ])?(?:\([2-9]\d{2}\) ?|[2-9]\d{2}[-. ])\d{3}[-. ]\d{4}|\([2-9]\d{2}\) ?\d{7}"
    r"|0[1-9](?:[ .-]\d{2}){4}|\(?0\d{1,4}\)?[ /-]\d{3,9}(?:[ -]\d{2,5}){0"
    r",3}|\(?0\d{2,4}\)?(?: \d{2,4}){2,4}|01[0-9][ -]?\d{3,4}[ -]?\d{4}"
    r"|0[27]\d{3} ?\d{6}|1[3-9]\d[ -]\d{4}[ -]\d{4}|8[ -]?\(9\d{2}\)["
    r" -]?\d{3}[ -]\d{2}[ -]\d{2}|8 9\d{2} \d{3}[ -]\d{2}[ -]\d{2}"
    r"|\(\d{2}\) ?9?\d{4}-\d{4}|[6-9]\d{4} \d{5}|[67]\d{2}(?: \d{2,3}){2,3}"
)
COUNTED = re.compile(r"\d{1,3}(?: \d{3}){2,}")  # a number whose thousands are apart
CARDS = re.compile(
    r"(?:3[47]\d{2}[ .-]?\d{6}[ .-]?\d{5}|(?:4\d{3}|5[1-5]\d{2}|2[2-7]\d{2}"
    r"|6(?:011|5\d\d|4[4-9]\d|2\d\d)|35[2-8]\d)(?:([ .-]?)\d{4})(?:\1\d{4}){2}"
    r"|3(?:0[0-5]|[68]\d)\d[ .-]?\d{6}[ .-]?\d{4})"
)
ANNOUNCING = frozenset(  # how the words begin of which one must be there for the next two
    "tel phon mobi cell fax whats sign hand port call text ring reac dial"
    " sms num ruf hotl cont chia tele liga llam appe anru bel zadz dzwo"
    " poz card paid pay char paym cred debi visa kart tarj cart".split()
)
PAID = re.compile(
    r"(?:card|paid|pay|charged?|payment|credit|debit|visa|karte|carte"
    r"|tarjeta|carta|cartão|карт\w+|信用卡|カード|카드)[^\d\n]{0,16}\Z",
    re.IGNORECASE,
)
# National ids by the module of python-stdnum that checks them.
IDS = {
    module: pattern
    for pattern, module in (
        (r"\d{3}\.\d{3}\.\d{3}-\d{2}", "br.cpf"),
        (r"\d{17}[\dXx]", "cn.ric"),
        (r"\d{8}-?[A-Z]", "es.dni"),
        (r"[XYZ]-?\d{7}-?[A-Z]", "es.nie"),
        (r"[12][ .]?\d{2}[ .]?\d{2}[ .]?\d[\dAB][ .]?\d{3}[ .]?\d{3}[ .]?\d{2}", "fr.nir"),
        (r"756[. ]?\d{4}[. ]?\d{4}[. ]?\d{2}", "ch.ssn"),
        (r"\d{6}[-+A]\d{3}[0-9A-Y]", "fi.hetu"),
        (r"(?:\d{2})?\d{6}[-+]\d{4}", "se.personnummer"),
        (r"\d{1,2}\.\d{3}\.\d{3}-[\dkK]", "cl.rut"),
        (r"(?:20|23|24|27)-\d{8}-\d", "ar.cuit"),
        (r"[A-Z]{6}\d{2}[A-Z]\d{2}[A-Z]\d{3}[A-Z]", "it.codicefiscale"),
        (r"[A-Z]{4}\d{6}[HM][A-Z]{5}[0-9A-Z]\d", "mx.curp"),
        (r"[A-Z]{3}[PCHFATBLJG][A-Z]\d{4}[A-Z]", "in_.pan"),
        (r"\d{4}[ -]\d{4}[ -]\d{4}", "in_.aadhaar"),
        (r"\d{6}/\d{4}", "cz.rc"),
        (r"\d{2}\.\d{2}\.\d{2}-\d{3}\.\d{2}", "be.nn"),
        (r"\d{6}-\d{7}", "kr.rrn"),
    )
}
ANY_ID = re.compile("|".join(f"({pattern})" for pattern in IDS.values()))
DATED = re.compile(rf"(?!0\d(?:\.\d\d){{4}})\(?{DATE}(?!\d)")
CARD_NUMBER = re.compile(r"\b(?:number is|card\W{0,3}(?:no|nr|number)?\W{0,3}) ?\Z", re.IGNORECASE)
IN_WORDS = (  # ids that have letters, or begin with one
    re.compile(
        r"[A-Z](?<![A-Za-z0-9_-][A-Z])(?:[A-Z]{5}\d{2}[A-Z]\d{2}[A-Z]\d{3}[A-Z]"
        r"|[A-Z]{3}\d{6}[HM][A-Z]{5}[0-9A-Z]\d|[A-Z]{4}\d{4}[A-Z]"
        r"|-?\d{7}-?[A-Z]|[A-Z] ?\d{2} ?\d{2} ?\d{2} ?[A-D])(?![A-Za-z0-9_-])"
    ),
    re.compile(r"[0-9](?<![A-Za-z0-9_.-]\d)(?:\d{7}-?[A-Z]|\d{16}X|\d{5}[-+A]\d{3}[A-Y])(?![A-Za-z0-9_-])"),
)
INSURANCE = re.compile(r"[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d{2} ?\d{2} ?\d{2} ?[A-D]")
SOCIAL = re.compile(r"(?!000|666|9\d\d)\d{3}([- ])(?!00)\d{2}\1(?!0000)\d{4}")
BIRTH_NUMBER = re.compile(r"\d{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])-[1-8]\d{6}")
IBAN = re.compile(
    r"[A-Z](?<![A-Za-z0-9_][A-Z])[A-Z]\d{2}(?:[ .-]?[A-Z0-9]{4}){2,7}(?:[ .-]?[A-Z0-9]{1,3})?(?![A-Za-z0-9])"
)
LINES = re.compile(r"[0-9](?<![\d.]\d)\d{3}(?:[ -]?\d{4}){0,2}\s?[\n\v]\s?\d{4}(?:[ \n\v-]?\d{4}){0,2}(?!\d)")
ADDRESS4 = re.compile(r"[0-9](?<![\w.-]\d)\d{0,2}(?:\.\d{1,3}){3}(?![\w]|\.\d)")
COLONS = re.compile(r":[0-9A-Fa-f]{0,4}:")
DOTTED = re.compile(r"\.[0-9A-Fa-f]{4}\.")
MAC = re.compile(
    r"[0-9A-Fa-f]{2}([:-])[0-9A-Fa-f]{2}(?:\1[0-9A-Fa-f]{2}){4}(?![\w:-])"
    r"|[0-9A-Fa-f]{4}(?:\.[0-9A-Fa-f]{4}){2}(?![\w.])"
)
DASHED = re.compile(r"-[0-9A-Fa-f]{2}-[0-9A-Fa-f]{2}-[0-9A-Fa-f]{2}-")
WALLETS = re.compile(
    r"(?<![A-Za-z0-9_])(?:0x[0-9a-fA-F]{40}|(?:bc1|tb1|ltc1)[a-z0-9]{25,60}"
    r"|[13](?=[a-zA-Z]*\d)[a-km-zA-HJ-NP-Z1-9]{25,34}|T[1-9A-HJ-NP-Za-km-z]{33}"
    r"|addr1[a-z0-9]{50,100}|X[1-9A-HJ-NP-Za-km-z]{33}|4[0-9AB][1-9A-HJ-NP-Za-km-z]{93})(?![A-Za-z0-9_])"
)
DOMAIN = re.compile(r"(?:[\w-]{1,63}\.){1,8}(?:xn--[a-z0-9-]{2,50}|[^\W\d_]{2,24})(?![\w-])|\[[\d.:a-fA-F]{4,45}\]")
SPOKEN = Words(
    " dot ,[dot,(dot,[at],(at),{at},<at>,[ at,( at",
    r"(?<![\w.])[\w.%+-]{1,64}(?: [\w-]+){0,2}?\s?(?:[\[({<]\s?at\s?[\])}>]|\bat\b)\s?[\w-]{1"
    r",63}(?:\s?(?:[\[({<]\s?(?:dot|punkt|point)\s?[\])}>]|\bdot\b)\s?[\w-]{2,63}){1,5}"
    r"|(?<![\w.])[\w.%+-]{1,64}\s?[\[({]\s?at\s?[\])}]\s?[\w-]{1,63}(?:\s?\.\s?[\w-]{2,63}){1,5}",
    re.IGNORECASE,
    back=100,
)
SERVICES = frozenset("git noreply no-reply donotreply do-not-reply root@localhost hg svn".split())
COORDINATES = re.compile(
    r"[0-9](?<![\w.,\[(]\d)(?<![\w.,\[(]-\d)\d?\.\d{4,7}°?\s?[NS]?\s?,\s?-?\d{1,3}\.\d{4,7}(?![\w.]|\s?,)"
)
DOCUMENTS = (
    r"passports?|(?:driver'?s?['’]?|driving) licen[cs]e|national (?:id"
    r"|identity|insurance)|identity card|id card|tax id|ssn|social security"
    r"|social insurance|health insurance|nhs|medical record|medicare|mrn"
    r"|aadhaar|cpf|dni|nie|nif|pesel|steuer-?id|steuernummer|bank account|routing"
    r"|sort code|reisepass\w*|personalausweis\w*|ausweis\w*|führerschein\w*"
    r"|pasaporte|passeport|passaporto|codice fiscale|sécurité sociale"
    r"|sozialversicherungs\w*|personnummer|bsn|curp|rut|nino|emirates id|iqama"
    r"|паспорта?|инн|снилс|여권 ?번호|운전면허|護照|护照|パスポート|免許証"
    r"|マイナンバー|身份证|جواز(?: السفر)?|الهوية|पासपोर्ट|आधार|पैन|imei|vin"
    r"|license plate|number plate|kennzeichen|matrícula|iban|konto\w*|kontonummer"
)
DOCUMENT_WORDS = (
    "passp,driver,driving,national i,identity,id card,tax id,ssn,social"
    ",health i,nhs,medic,mrn,aadhaar,cpf,dni,nie,nif,pesel,steuer,bank a"
    ",routing,sort code,reise,personal,ausweis,führer,pasaporte,codice,sécu"
    ",sozial,bsn,curp,rut,nino,emirates,iqama,паспорт,инн,снилс,여권,운전면허"
    ",護照,护照,パスポート,免許証,マイナンバー,身份证,جواز,الهوية,पासपोर्ट"
    ",आधार,पैन,imei,vin,license p,number p,kennzeichen,matrícula,iban,konto"
)
OTHERS = (
    r"tax|tin|insurance|patient|account|policy"
    r"|member(?:ship)?|licen[cs]e|plate|acct"
)  # they count only with "number", "id" or "no."
NUMBER = (
    r"(?P<value>(?=[A-Z]{0,6}[ -]?\d|[A-Z]{1,2} \d)(?=[^\n]{0,20}\d[^\n]{0"
    r",20}\d)[A-Z0-9](?:[A-Z0-9]|[ ./-](?=[A-Z]{0,3}\d)){3,24})(?![\w])"
)
BEHIND = (
    r"(?:[\s\"']{0,2}(?:is|was|ist|lautet|es|est|é|e|es:|:|=|#|->"
    r"|是|は|은|는|है|هو|号|號|码|の番号)){0,3}[\s：]{0,2}[\"'#]?"
)
NUMBERED = (
    r"(?:[ ._-]?(?:id|no|nr|num|numbers?|nummer|numéro|número|numero|code|card|n°|№|号码?|번호|番号|رقم|नंबर))*\b\.?"
)
SURELY = r"(?:[ ._-]?(?:id|no|nr|num|number|code)\b\.?)"
STREETS = (
    "Street|St|Avenue|Ave|Road|Rd|Boulevard|Blvd|Lane|Ln|Drive|Dr|Court"
    "|Ct|Way|Place|Pl|Square|Sq|Terrace|Parkway|Pkwy|Close|Crescent"
)
NAMES = (
    r"(?P<value>[A-ZÀ-ÞА-ЯЁ][\w'’-]{1,30}(?: (?:(?:van|von|de|der|den"
    r"|la|bin|al|da|dos) ){0,2}[A-ZÀ-ÞА-ЯЁ][\w'’.-]{0,30}){0,3})(?![\w])"
)
HOUSED = (  # an address with the number of a house, to the end of the clause
    r"(?P<value>(?=[^\n;!?\"]{0,60}\d)(?:[A-ZÀ-Þ\d]|[a-zà-þ]{2"
    r",10}\.? (?=[A-ZÀ-Þ]))(?:[^\n;!?\".]|\.(?=\S| \w)){3,80}?)"
    r"(?=\.?\s*(?:$|[\n;!?\"]|, (?:please|bitte|thanks)|\. ))"
)


ANNOUNCED = (
    (
        "birth date",
        Words(
            "born,birth,dob,d.o.b,geboren,geburts,né le,née le,nacid,nascid,nato"
            " il,nata il,naissance,nacimiento,생년월일,生年月日,出生,родил,рожд",
            r"(?:born(?: on)?|birth(?: ?date|day)?|dob|d\.o\.b\.|geboren(?:"
            r" am)?|geburts\w+|née? le|nacid[oa](?: el)?|nascid[oa](?: em)?"
            r"|nat[oa] il|naissance|nacimiento|생년월일|生年月日|出生(?:日期)?|родил\w+|рождения)(?:は|은|는)?\W{0,4}"
            rf"(?:is |was |on |ist |am |der |el |le )?(?P<value>{DATE})",
            re.IGNORECASE,
        ),
    ),
    ("number", Words(DOCUMENT_WORDS, rf"(?<![A-Za-z])(?:{DOCUMENTS}){NUMBERED}{BEHIND}{NUMBER}", re.IGNORECASE)),
    ("number", Words("pan", r"\bPAN\W{1,3}(?:(?:no|number|card|is)\W{1,3}){0,2}(?P<value>[A-Z]{5}\d{4}[A-Z])\b")),
    ("number", Words("aadhaar", r"(?P<value>\d{4} \d{4} \d{4})[^\n\d]{1,20}(?i:aadhaar)", back=36)),
    ("phone", Words("wa.me/,t.me/+,tel:", r"(?:wa\.me/|t\.me/|tel:)(?P<value>\+?\d[\d-]{7,16})")),
    (
        "number",
        Words(
            "tax,tin,insurance,patient,account,policy,member,licen,plate,acct",
            rf"\b(?:{OTHERS}){SURELY}{BEHIND}{NUMBER}",
            re.IGNORECASE,
        ),
    ),
    (
        "address",
        Words(
            "straße,strasse,str.,weg ,platz ,allee ,gasse ",
            r"\b[A-ZÄÖÜ][\wäöüß-]{1,40}(?:straße|strasse|str\.|weg|platz|allee|gasse)\s\d{1,4}\s?[a-z]?\b",
            back=42,
        ),
    ),
    (
        "address",
        Words(
            "rue,avenue,boulevard,place,chemin,via,calle,piazza,rua,corso,avenida",
            r"\b\d{1,4},? (?:rue|avenue|boulevard|place|chemin) (?:(?:de|des|du|la|le"
            r"|les) |[dl]['’])*[A-ZÀ-Þ][\w'’-]{1,30}(?: [A-ZÀ-Þ][\w'’-]{1,30}){0,2}"
            r"|\b(?:[Vv]ia|[Cc]alle|[Pp]iazza|[Rr]ua|[Cc]orso|[Aa]venida)"
            r" (?:(?:de|del|della|di|da|do|la|los) )*[A-ZÀ-Þ][\w'’-]{1,30}"
            r"(?: [A-ZÀ-Þ][\w'’-]{1,30}){0,2},? (?:n[°º.]? ?)?\d{1,4}\b",
            back=7,
        ),
    ),
    ("address", Words("p.o,po box,p o", r"P\.? ?O\.? Box \d{1,7}\b", re.IGNORECASE)),
    (
        "address",
        Words(
            "address is,address:,i live,i'm liv,i am liv,living,wohne"
            ",habite,vivo,abito,moro,send ,ship ,deliver ,mail ,post ",
            r"(?i:address(?: is|:)|i(?:'m| am)? liv(?:e|ing) (?:at|in)|living (?:at"
            r"|in)|wohne in(?: der)?|habite(?: au)?|vivo en|moro n[ao]|abito in"
            rf"|(?:send|ship|deliver|mail|post) (?:it|this|them|the \w+) to)\s{{1,2}}{HOUSED}",
            re.MULTILINE,
        ),
    ),
    (
        "address",
        Words(
            "my address is,home address is,postal address is,street address is,i live at",
            r"(?i:(?:my|home|postal|street) address is|i live at)\s(?P<value>[A-ZÀ-Þ][\w'’-]{1"
            r",30}(?: (?:d[eaiou]s? )?[A-ZÀ-Þ][\w'’-]{1,30}){1,4})",
        ),
    ),
    (
        "address",
        Words(
            "로 ,길 ,동 ",
            r"[가-힣]{2,8}(?:시|도) (?:[가-힣]{1,8}(?:시|군|구) ){1"
            r",2}[가-힣0-9]{1,12}(?:로|길|동)(?: \d{1,5}(?:-\d{1,4})?)?",
            back=40,
        ),
    ),
    (
        "address",
        Words(
            "丁目,号,路,番",
            r"[\u3400-\u9fff]{2,12}(?:区|市|県|省)[\u3400-\u9fff0-9]{1"
            r",16}?(?:\d{1,4}(?:丁目|号|番地?)|路\d{1,5}号|\d{1,3}-\d{1,3}-\d{1,3})",
            back=40,
        ),
    ),
    (
        "address",
        Words(
            "ул.,улица,пр.,проспект,пер.",
            r"(?:ул\.|улица|пр\.|проспект|пер\.) ?[А-ЯЁ][А-Яа-яё-]{2"
            r",30},? ?(?:д\.|дом)? ?\d{1,4}(?:,? кв\. ?\d{1,4})?",
        ),
    ),
    (
        "name",
        Words(
            "my name is,my full name is,my name's,the name is,ich heiße,ich heisse"
            ",mein name ist,je m'appelle,me llamo,mi chiamo,me chamo,меня зовут",
            r"(?i:my (?:full )?name is|my name's|the name is|ich heiße|ich heisse"
            r"|je m'appelle|me llamo|mi chiamo|me chamo|меня зовут|mein name ist)"
            rf"\s(?!(?i:on|in|the|not|a|an)\b){NAMES}",
        ),
    ),
    ("name", Words("이름은", r"이름은 ?(?P<value>[가-힣]{2,4}?)(?=입니다|이에요|예요|이고)")),
    (
        "name",
        Words(
            "名前は,我叫,名字是,名字叫",
            r"(?:名前は|我叫|名字是|名字叫)(?P<value>[\u3040-\u30ff\u3400-\u9fff]{2,8}?)(?=です|と|，|。|,|\s|$)",
        ),
    ),
    ("name", Words("اسمي", r"اسمي (?P<value>[\u0600-\u06ff]{2,15}(?: [\u0600-\u06ff]{2,15})?)")),
    ("name", Words("मेरा नाम", r"मेरा नाम (?P<value>[\u0900-\u097f]{2,15}(?: (?!है)[\u0900-\u097f]{2,15})?)")),
)
STREET = re.compile(
    rf"[0-9](?<![\w.]\d)\d{{0,4}}[A-Za-z]?,? (?:[A-Z][\w'’.-]{{0,30}}"
    rf" ){{1,4}}(?:{STREETS})\b\.?(?:,? (?:Apt|Apartment|Suite|Unit|Flat|#)\.? ?\w{{1,6}})?"
)
SIGNS = re.compile(r"[\d@]")
