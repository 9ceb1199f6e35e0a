"""Finds secrets by their form: keys of services, key material, what text announces as a password, codes and seed phrases.

Looked at are only words of 16 characters and more, and what stands behind one of few words, because all others are
20 times as many. A secret that is wrapped over lines, or encoded in base64, is found as well.
"""

# ruff: noqa: RUF001  # letters of other scripts, which are meant
from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator

from addons.masking.readable import Seen, Words, long_words, value_of

LEAST = 16  # characters of a word that may be a key
IN_KEY = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_+/=.-")
# A key goes on with a digit.
WRAPPED = re.compile(r"[\n\v][ \t>|]{0,8}(?=[A-Za-z_+/=.-]{0,40}[0-9])(?=[\w+/=.-]{6})", re.ASCII)
PIECE = re.compile(r"[\w+/=.-]+", re.ASCII)
# Where it is put together from parts: scanners of repositories look for such texts, too.
SERVICES = (
    # OpenAI, Anthropic, Langfuse, OpenRouter, Stripe
    r"[srp]k[-_](?=[\w-]{0,200}\d)[\w-]{16,}|csk-[\w-]{20,}|nvapi-[\w-]{20,}|pplx-\w{20,}|xai-\w{20,}",
    r"gsk_\w{20,}|r8_\w{20,}|hf_[A-Za-z0-9]{16,}|api_org_\w{20,}|tgp_v1_[\w-]{20,}|fw_\w{20,}|jina_\w{20,}",
    r"tvly-[\w-]{16,}|fc-[0-9a-f]{32}|e2b_\w{20,}|wandb_v1_\w{20,}|lsv2_\w{16,}|ls__\w{20,}|phx_\w{20,}",
    r"phc_\w{20,}|pnu_\w{20,}|voyage-[\w-]{30,}|pa-[\w-]{40,}|AQ\.[\w-]{30,}|gh[a-z]_[A-Za-z0-9]{20,}",
    r"github_pat_\w{20,}|gl[a-z]{2,7}-[\w-]{16,}|GR1348941[\w-]{16,}|sgp_\w{20,}|ATBB\w{20,}|ATATT3[\w=-]{30,}",
    r"ATCTT3[\w=-]{30,}|CCIPAT_\w{20,}|bkua_\w{20,}|sq[uap]_\w{20,}|npm_[A-Za-z0-9]{20,}|pypi-[\w-]{20,}",
    r"dckr_[a-z]{3}_[\w-]{20,}|rubygems_\w{20,}|oy2[a-z0-9]{43}|CLOJARS_\w{20,}|cio\w{32}|AKCp\w{60,}",
    r"xox[a-z](?:\.xox[a-z])?-[\w-]{10,}|xapp-[\w-]{16,}|hooks\.slack\.com/\w+/[\w/]{10,}",
    r"discord(?:app)?\.com/api/webhooks/\d+/[\w-]{10,}|[\w.-]{1,60}webhook\.office\.com/[\w@/-]{16,}",
    r"[MNO][A-Za-z0-9_-]{23,27}\.[\w-]{6}\.[\w-]{27,40}|(?:bot)?\d{8,10}:AA[\w-]{32,34}",
    r"SG\.[\w-]{16,}\.[\w-]{16,}|key-[a-z0-9]{32}|[0-9a-f]{32}-us\d{1,2}|xkeysib-[\w-]{30,}|re_\w{8,}_\w{16,}",
    r"whsec_[\w+/]{16,}|SK[0-9a-f]{32}|AC[0-9a-f]{32}|rzp_(?:live|test)_\w{10,}|sq0[a-z]{3}-[\w-]{20,}",
    r"EAAA[\w-]{30,}|EAA[A-Za-z0-9]{40,}|FLWSECK\w*-[\w-]{16,}|access_token\$\w+\$\w{8,}\$\w{16,}",
    r"shippo_(?:live|test)_\w{20,}|EZ[AT]K\w{30,}|lob_\w{20,}|A[BKGINRS][CIKOP][A-Z][A-Z0-9]{16}",
    r"ABSK[\w+/=]{20,}|amzn\.mws\.[\w-]{20,}|LTAI[A-Za-z0-9]{12,}|AKID[A-Za-z0-9]{24,}|AIza[\w-]{30,}",
    r"GOCSPX-[\w-]{16,}|ya29\.[\w.-]{16,}|1//0[\w-]{20,}|AAAA[\w-]{7}:[\w-]{100,}",
    r"[A-Za-z0-9]{3}[78]Q~[\w~.-]{28,}|dt0[a-z]\d{2}\.\w{20,}\.?\w*|eyJ[\w-]{8,4000}+\.[\w-]{8,}(?:\.[\w-]*)*",
    r"hv[sbr]\.[\w-]{20,}|[A-Za-z0-9]{14}\.atlasv1\.[\w-]{30,}|do[opr]_v1_[0-9a-f]{40,}",
    r"shp[a-z]{2}_[0-9a-fA-F]{20,}|dapi[0-9a-f]{30,}(?:-\d)?|lin_[a-z]+_\w{20,}|secret_[A-Za-z0-9]{30,}",
    r"ntn_\w{30,}|NR[A-Z]{2}-[\w-]{16,}|sntry[a-z]_[\w=/+-]{20,}|PMAK-[\w-]{30,}|gls?[ac]_[\w=+/]{20,}",
    r"fig[a-z]_[\w-]{20,}|pat\w{14}\.[0-9a-f]{32,}|HRKU-[\w-]{20,}|pul-[0-9a-f]{32,}",
    r"dp\.[a-z]{2,5}\.(?:\w+\.)?\w{30,}|AGE-SECRET-KEY-1[A-Z0-9]{30,}|sl\.[\w-]{40,}|CFPAT-[\w-]{20,}",
    r"pscale_[a-z]+_[\w.-]{20,}|sb[p]_[0-9a-f]{30,}|sb_secret_[\w-]{16,}|nfp_\w{20,}|fo1_[\w-]{20,}",
    r"fm2_[\w+/=]{30,}|rnd_\w{20,}|tskey-[\w-]{16,}|ops_eyJ[\w-]{20,}|vc[a-z]_\w{20,}|duffel_\w+_[\w-]{20,}",
    r"rdme_\w{30,}|zpka_\w{20,}|AIS\w{30,}|6P[1-9A-HJ-NP-Za-km-z]{56}|[5KL][1-9A-HJ-NP-Za-km-z]{50,51}(?!\w)",
    r"xprv[1-9A-HJ-NP-Za-km-z]{60,}|access-(?:production|development|sandbox)-[0-9a-f-]{36}",
    r"pat-[a-z]{2}\d-[0-9a-f-]{36}|IGQV[\w-]{40,}|A{16,}[\w%+/]{40,}|v1\.0-[0-9a-f]{24}-[0-9a-f]{100,}",
    r"[01]/\d{16}:[0-9a-f]{32}|hooks?\.[\w.-]{4,60}/[\w/-]{10,}",
    # Hashes of passwords.
    r"\$(?:apr1|1|2[abxy]|5|6|7|y|argon2\w*|pbkdf2[\w-]*|scrypt)\$[^\s:\"',]{20,}",
    # A key as the user of an address.
    r"(?<=://)(?=[\w.-]{0,200}\d)[\w.-]{16,}(?=@)",
    # A service that nobody knows: its name, what it is, and letters that are drawn.
    (
        r"[A-Za-z][A-Za-z0-9]{1,14}(?:[_-][A-Za-z0-9]{1,10}){0,2}?[_-](?:live|prod|test|secret|key|token|tok|"
        r"pat|api|auth|cred|sk|admin|private|personal|access)[_-](?=[A-Za-z_-]{0,200}\d)[\w-]{20,}"
    ),
    r"[a-z]{1,6}(?:k|tok|pat|tkn|key)_(?=[a-z]*\d)(?=[a-f0-9]*[g-z])[a-z0-9]{32,}",
    (
        r"(?!(?:call|req|resp|run|msg|evt|cus|pi|ch|sub|in|price|prod|file|asst|thread|chatcmpl|toolu|id|ref|"
        r"rs|fc|item|step|trace|span|obs|job)_)[a-z][a-z0-9]{1,9}_(?=\w*\d)(?=\w*[a-z]\d|\w*\d[a-z])"
        r"(?=\w*[A-Z])(?=\w*[a-z][A-Z])[A-Za-z0-9]+_?[A-Za-z0-9]{24,}"
    ),
)
FORM = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(SERVICES)})")
PEM = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|\Z)"
    r"|(?<=Private-Lines: )\d+(?:\r?\n|\\n|\v)(?:[\w+/=]+(?:\r?\n|\\n|\v)?)+",
    re.DOTALL,
)
DER = re.compile(r"(?<![\w+/])MII[A-Za-z0-9+/]{30,}={0,2}(?:\s[A-Za-z0-9+/=]{20,})*")
KEY = re.compile(r"[A-Za-z0-9+/_~.-]{16,}={0,2}")
AWS = re.compile(r"(?<![\w+/=.-])[A-Za-z0-9+/]{40}(?![\w+/=-])")
BASE64 = re.compile(r"(?<![\w+/=.-])[A-Za-z0-9+/_-]{20,}={0,2}(?![\w+=-])")
PAIR = re.compile(r"(?<![\w:/.@-])[\w.+-]{1,60}:(?P<value>[^\s:/@\"'<>]{6,100})@(?!sha\d)(?=[\w.-])")
PARAMETER = re.compile(
    r"(?i)[?&;](?:[\w-]{0,30}?(?:key|sig|signature|token|secret|auth"
    r"|passw(?:or)?d|pwd|session|sessionid|sid|jwt|credential|code|apikey))"
    r"=(?P<value>(?=[^&\s]{0,60}\d)[^&\s\"'<>;]{12,})"
)
MIXED = re.compile(r"(?=[^a-z]*[a-z])(?=[^A-Z]*[A-Z])(?=\D*\d)")
LETTER, DIGIT = re.compile(r"[A-Za-z]"), re.compile(r"\d")
HEX = re.compile(r"[0-9a-f]{20,}|[0-9A-F]{20,}|[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
# Words of many languages for a password, and what links one with its value.
PASSWORD = (
    r"pass(?:word|code|phrase|wort)|kennwort|pwd|contrase[ñn]a"
    r"|clave|mot de passe|mdp|senha|palavra-passe|wachtwoord|has[łl]o"
    r"|пароль|parola|şifrem?|sifre|lösenord|salasana|adgangskode"
    r"|heslo|jelsz[óo]|κωδικός|mật khẩu|kata sandi|lozinka|passord"
    r"|비밀번호|암호|パスワード|密码|密碼|口令|كلمة (?:المرور|السر)|पासवर्ड|סיסמה|รหัสผ่าน"
)
LINK = (
    r"(?:[\s\"'`*]{0,3}(?:\b(?:is|was|are|to|ist|lautet|war|es|est"
    r"|e|jest|to|är|on|er|je|az|adalah|olan|was|were|now|changed)\b"
    r"|:|=|é|è|это|είναι|là|은|는|이|가|は|が|是|为|為|：|هي|هو|है|-|—))"
)
FOR = r"(?:[^\S\n]{1,2}(?:for|of|on|to|für|zu[mr]?|von|para|de[l]?|pour|di|dla|do|от|для)[^\n,.;:]{1,40}?)??"
WORDY = Words(
    "pass,kennwort,pwd,contrase,clave,mot de passe,mdp,senha,palavra-passe"
    ",wachtwoord,haslo,hasło,пароль,parola,şifre,sifre,lösenord,salasana"
    ",adgangskode,heslo,jelsz,κωδικός,mật khẩu,kata sandi,lozinka"
    ",비밀번호,암호,パスワード,密码,密碼,口令,كلمة,पासवर्ड,סיסמה,รหัสผ่าน",
    rf"(?i)(?<![A-Za-z_-])(?:{PASSWORD})[a-zåäöа-яё]{{0,3}}(?![A-Za-z_-]){FOR}{LINK}{{0,3}}"
    r"(?:\s{0,2}\\*(?P<open>[\"'`“«「『])(?P<quoted>(?:\w[\w-]{0,20} ){1,7}\w[\w-]{0,20})(?=\\*[\"'`”»」』])"
    r"|[\s\"'`“”«「『(]{1,3}(?P<value>(?=\S{0,79}\d)[!#-&*-:<-\[\]-_a-~]{4,80}))"
    rf"|(?:비밀번호|암호|パスワード|密码|密碼|口令|كلمة (?:المرور|السر))\S{{0,3}}?\s?(?P<cjk>[!#-&*-:<-\[\]-_a-~]{{4,80}})",
    wordy=True,
)
CODE_WORDS = (
    r"pin(?:[- ](?:code|number))?|otp|(?:one[- ]time|verification|security"
    r"|authentication|auth|2fa|access|confirmation|login|door|alarm"
    r"|sms|unlock|gate) (?:code|password|pin)|passcode|cvv2?|cvc2?|tan"
    r"|bestätigungscode|código de (?:verificación|verificação|acceso)"
    r"|code de (?:vérification|sécurité)|codice di verifica|код(?:"
    r" подтверждения)?|验证码|驗證碼|認証コード|暗証番号|인증번호|인증 ?코드"
    r"|رمز التحقق|सत्यापन कोड|ओटीपी"
)
CODES = Words(
    "pin,otp,one-time,one time,verification,security,authentication,auth "
    ",auth-,2fa,access,confirmation,login,door,alarm,sms,unlock,gate,passcode"
    ",cvv,cvc,tan,bestätigungscode,código,code de,codice,код,验证码"
    ",驗證碼,認証コード,暗証番号,인증,رمز التحقق,सत्यापन,ओटीपी",
    rf"(?i)(?<![A-Za-z_])(?:{CODE_WORDS})(?![a-z_])(?:[^\n\d.;:=]{{0,30}}?)(?:\b(?:is"
    rf"|was|ist|lautet|es|est|é|è)\b|:|=|：|是|は|은|는|है|هو|—|-)"
    r"?\s{0,2}[\"'`]?(?P<value>\d{3,4}[- ]?\d{3,4}|\d{3,8})(?![\w.,-]?\d|\w|%)",
)
NAMED = re.compile(  # before a drawn word
    r"(?i)(?:(?:api|secret|access|private|account|master|licen[cs]e"
    r"|subscription|encryption|signing|auth|bot|admin|service|deploy|session"
    r"|openai|azure|aws|stripe|gemini|anthropic|cohere|mistral|datadog)[ _-]?(?:key"
    r"|token|id)|(?<![a-z])key(?=\\*\"?(?: is\b|\s?[:=]))|\blogin|token|secret"
    r"|credentials?|\bclé|llave|schlüssel|chave|ключ|токен|密钥|秘钥|トークン"
    r"|키(?=[는가])|토큰)s?(?![a-z_(])[^\n\d(){}\[\]]{0,30}?[\s:=\\\"'`(「：是는은は]{1,6}\Z"
)
SEED = Words(
    "seed,mnemonic,recovery,backup,secret,wallet,semilla,wiederherstellung,助记词,助記詞,니모닉",
    r"(?i)(?:seed|mnemonic|(?:recovery|backup|secret|wallet)[ -](?:phrase"
    r"|words|seed)|semilla|wiederherstellungs\w+|助记词|助記詞|니모닉)"
    r"[^\n]{0,20}?[:=\s]\s{0,2}[\"'`]?(?P<value>(?-i:[a-z]{3,8}(?:[\s,]{1,2}[a-z]{3,8}){11,23}))(?![a-z])",
)
LOGIN = Words(
    "-u ,-u=,--user,--proxy-user,login,log in,login as,log on,sign in,logon"
    ',user,machine,openssl,convertto,wifi:,pass,secret,token,"d",backup,recovery'
    ",sshpass,mysql,identified",
    r"(?:(?<=\s)-u|--user|--proxy-user)[ =]['\"]?(?:(?=[A-Za-z]*\d)(?P<pair>[A-Za-z0-9_-]{20"
    r",}:[^\s'\"\\]{3,200})|[^\s:'\"]{1,64}:(?P<value>[^\s'\"\\]{3,200}))"
    r"|\b(?:login|user(?:name)?|machine)\s+\S{1,64}\s+(?:pass(?:word)?|pwd)\s+(?P<netrc>\S{4,200})"
    r"|\b(?:login|user(?:name)?)\s+\S{1,64}?\s?[/,;]\s?(?:pass(?:word)?|pwd)\s+(?P<slash>(?=\S{0,79}\d)\S{4,80})"
    r"|IDENTIFIED (?:WITH \S{1,40} )?BY (?:PASSWORD )?\\*['\"](?P<sql>[^\"'\n\\]{1,200})"
    r"|(?i:log|sign) ?(?:in|on) (?:as|with) [\w.@-]{1,40} ?[/:,] ?(?P<as>\S{4,80})"
    r"|openssl\b[^\n]{0,80}? (?:-k |-pass(?:in|out)? pass:)['\"]?(?P<openssl>[^\s'\"\\]{4,200})"
    r"|ConvertTo-SecureString\s+(?:-String\s+)?\\*['\"](?P<power>[^\"'\n\\]{4"
    r",200})|WIFI:[^\n]{0,80}?P:(?P<wifi>[^;\n]{4,80})"
    r"|(?i:passw\w+|secret|token)\\*\"?\s*\{[^{}\n]{0,80}?default\s*=\s*\\*\"(?P<terraform>[^\"\n\\]{4,200})"
    r"|\"d\\*\"\s?:\s?\\*\"(?P<jwk>[\w-]{40,})\""
    r"|(?i:backup|recovery) codes?\W{1,4}(?P<backup>(?:[A-Za-z0-9]{4,8}(?:-[A-Za-z0-9]{4"
    r",8})+|\d{6,10})(?:[\s,;]{1,2}[A-Za-z0-9]{4,10}(?:-[A-Za-z0-9]{4,8})*)*)"
    r"|sshpass\s+-p\s?['\"]?(?P<ssh>[^\s'\"\\]{3,200})|mysql\b[^\n]{0,60}?\s-p(?P<mysql>[^\s'\"\\]{4,200})",
    wordy=True,
)
COOKIE = Words("cookie:", r"(?i)cookie:[^\n]{0,4000}")
CRUMB = re.compile(r"[\w.-]{1,60}=(?P<value>(?=[^;\s]{0,60}\d)[^;\s\"']{16,})")


def spans(seen: Seen, again: Callable[[str], str]) -> Iterator[tuple[int, int]]:
    """Where secrets stand in a text. `again` masks what base64 holds."""
    text, small = seen.text, seen.small
    for start, word in seen.long:
        if DIGIT.search(word):
            yield from _in_word(text, start, word, again)
            yield from _behind_noun(text, small, start, word)
        elif _turns(word) >= 3:
            yield from ((start + match.start(), start + match.end()) for match in FORM.finditer(word))
    if "private" in small:
        yield from (match.span() for match in PEM.finditer(text))
    if "MII" in text:
        for match in DER.finditer(text):
            if "PRIVATE" in text or "CERTIFICATE" not in text[max(0, match.start() - 40) : match.start()]:
                yield match.span()
    if "\n" in text or "\v" in text:
        yield from _wrapped(text)
    for header in COOKIE.finditer(seen):
        yield from (
            (header.start() + start, header.start() + end) for start, end in map(value_of, CRUMB.finditer(header[0]))
        )
    for match in (*LOGIN.finditer(seen), *SEED.finditer(seen)):
        if not text.startswith("[", value_of(match)[0]):
            yield value_of(match)
    for match in WORDY.finditer(seen):
        start, end = value_of(match)
        end = start + len(text[start:end].rstrip(".,;:?)]}>'\"`"))
        if " " in text[start:end] or _is_password(text[start:end]):
            yield start, end
    for match in CODES.finditer(seen):
        if not re.fullmatch(r"(?:19|20)\d\d", match["value"]):
            yield match.span("value")


def _behind_noun(text: str, small: str, start: int, word: str) -> Iterator[tuple[int, int]]:
    """Drawn words behind one for a key or a token."""
    for match in KEY.finditer(word):
        place = start + match.start()
        before = small[max(0, place - 60) : place]
        is_named = any(noun in before for noun in NOUNS) and NAMED.search(text, max(0, place - 60), place)
        if is_named and DIGIT.search(match[0]) and is_drawn(match[0]):
            yield place, place + len(match[0])


def keys(text: str) -> Iterator[tuple[int, int]]:
    """Where keys of services and key material stand in a text."""
    for start, word in long_words(text, LEAST):
        yield from ((start + match.start(), start + match.end()) for match in FORM.finditer(word))
    yield from (match.span() for match in PEM.finditer(text))


NOUNS = "token key secret credential clé llave schlüssel chave ключ токен 密钥 秘钥 トー 키 토큰 login".split()


def _in_word(text: str, start: int, word: str, again: Callable[[str], str]) -> Iterator[tuple[int, int]]:
    for match in FORM.finditer(word):
        yield start + match.start(), start + match.end()
    if "=" in word and ("?" in word or "&" in word or ";" in word):
        yield from ((start + match.start("value"), start + match.end("value")) for match in PARAMETER.finditer(word))
    if "@" in word and ":" in word:
        yield from (
            (start + match.start("value"), start + match.end("value"))
            for match in PAIR.finditer(word)
            if is_drawn(match["value"])
        )
    if len(word) >= 40:
        for match in AWS.finditer(word):
            is_key = MIXED.match(match[0]) and "/" not in match[0][:1] and not HEX.fullmatch(match[0])
            if is_key and _turns(match[0]) >= 7:  # too many for words, such as a path's
                yield start + match.start(), start + match.end()
    if len(word) >= 20:
        for match in BASE64.finditer(word):
            if MIXED.match(match[0]) and _hides(match[0], again):
                yield start + match.start(), start + match.end()


def _hides(word: str, again: Callable[[str], str]) -> bool:
    """Whether the text that is encoded in a word holds a secret."""
    plain = word.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        if not _is_text(base64.b64decode(plain[:16])):
            return False
        content = base64.b64decode(plain + "=" * (-len(plain) % 4))
    except ValueError:
        return False
    return _is_text(content) and again(shown := content.decode()) != shown


def _is_text(content: bytes) -> bool:
    return content.isascii() and all(sign >= 32 or sign in b"\t\r\n" for sign in content)


def _wrapped(text: str) -> Iterator[tuple[int, int]]:
    """Keys that go on in the next line: the word before a break and those after it are looked at without the break."""
    end = 0
    for match in WRAPPED.finditer(text):
        start = before = match.start() - (text[match.start() - 1 : match.start()] in ("\r", "\\"))
        while start > end and before - start < 400 and text[start - 1] in IN_KEY:
            start -= 1
        if start == before:
            continue
        pieces = [(start, before)]
        follow: re.Match[str] | None = match
        while follow and len(pieces) < 60 and (piece := PIECE.match(text, follow.end())):
            pieces.append(piece.span())
            end = piece.end()
            follow = WRAPPED.match(text, end)
        joined = "".join(text[slice(*piece)] for piece in pieces)
        if len(joined) >= LEAST and DIGIT.search(joined):
            yield from _across(joined, text, pieces)


def _across(joined: str, text: str, pieces: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The keys that reach from the first of some pieces of a text into others, but not into a plain word."""
    for match in FORM.finditer(joined, 0, pieces[0][1] - pieces[0][0] + len(joined)):
        place, stop = 0, 0
        for start, end in pieces:
            if place < match.end() and (not place or (DIGIT.search(text, start, end) and end - start >= 6)):
                stop = start + min(end - start, match.end() - place)
            elif place:
                break
            place += end - start
        if match.start() < pieces[0][1] - pieces[0][0] and stop > pieces[0][1]:
            yield pieces[0][0] + match.start(), stop


def is_drawn(word: str) -> bool:
    """Whether a word behind one for a key is such: drawn letters, a hash or an id, and no name, path or file."""
    return bool(HEX.fullmatch(word)) or bool(
        DIGIT.search(word)
        and LETTER.search(word)
        and not re.search(r"[a-z]{5,}.*[._/-].*[a-z]{5,}", word)
        and _turns(word) >= 4
    )


def _turns(word: str) -> int:
    """How often letters and digits, or small and capital letters, follow each other in a word."""
    return len(re.findall(r"[a-z](?=[A-Z0-9])|[A-Z](?=[0-9])|[0-9](?=[A-Za-z])", word))


def _is_password(word: str) -> bool:
    """Whether a word behind "the password is" is one: it has a digit and a letter, or signs between them."""
    if len(word) < 4 or re.search(r"\(|^\$|^%|^\{|^--|://|^\d{1,2}[a-z]{1,6}$", word):
        return False
    return bool(DIGIT.search(word) and (LETTER.search(word) or len(word) >= 6))
