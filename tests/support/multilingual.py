"""multilingual.py: texts made at random, the same ones every time, that tokenizers find hard: many scripts, special tokens,
odd white space, emoji held together by joiners, combining marks in any order, control characters, long runs."""
import random

WORDS = """The quick brown fox jumps over lazy dogs it's I'LL they're don't WE'VE o'clock e.g. i.e. U.S.A. naïve café résumé coöperate
Der schnelle braune Fuchs springt Straße Äpfel ÜBER größer le garçon déjà vu œuvre Ça l'été niño ¿Qué? ¡Olé! ação João İstanbul ığüşöç
Příliš žluťoučký kůň zażółć gęślą jaźń õhtu ħal þór Ðe ǅ ŉ ſtraſse ﬁne ﬂow ﬀ ½ ² ³ № ™ Å K
Вода бежит ПОД лежачий камень Ёж объём Ελληνικά ΣΊΣΥΦΟΣ ς ΐ Հայերեն ქართული שָׁלוֹם עברית مَرْحَبًا بالعالم ١٢٣ ۴۵۶ فارسی می‌خواهم اردو
हिन्दी नमस्ते क्षत्रिय १२३ नेपाली किताब বাংলা ਪੰਜਾਬੀ தமிழ் తెలుగు ಕನ್ನಡ മലയാളം සිංහල ไทย ภาษา ກໍ ລາວ မြန်မာ ခမာ မန် ភាសា བོད་ ᠮᠣᠩᠭᠣᠯ አማርኛ ᏣᎳᎩ
水从河里流到水轮机 汉字 漢字 你好，世界。 「日本語」 ひらがな カタカナ ｶﾀｶﾅ ガギグ が 々 〆 한국어 조선말 각 값 𠮷野家 𝓗𝓮𝓵𝓵𝓸 𝟙𝟚 ㍿ ① Ⅷ ︙
Tiếng Việt được ế ộ Türkçe x̌ ạ̃ ǭ q̣̇ Z̷a̴l̵g̶o̷ def main(argc: int) -> None: return 0x1F /* a */ snake_case camelCase HTTPServer2 v2.0.1
https://example.org/a?b=c&d=%20 user@example.com 3.14159 1,000,000 1e-10 12345678901 50% $9.99 €5 #tag @name <b>x</b> {"k": [1]} \\n C:\\x""".split()
EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "1️⃣", "❤️", "👩🏻‍💻", "🧑‍🚀", "☃", "⚡️", "🫠", "\U0001fae8", "\u200d", "\ufe0f"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n ", "\u00a0", "\u2003", "\u3000", "\u2028", "\u2029", "\u1680", "\u180e", "\u200b",
          "\u202f", "\u205f", "\x0b", "\x0c", "\x85", "\x1c", "\x1f", "\ufeff", "\u2581", "        ", "\t\t \t"]
MARKS = ["\u0301", "\u0308", "\u0323", "\u0327", "\u0345", "\u05bc", "\u064b", "\u0654", "\u093c", "\u3099", "\u20dd", "\u034f", "\u0489", "\u0f71"]
CONTROL = ["\x00", "\x01", "\x08", "\x1b", "\x7f", "\x80", "\x9f", "\xad", "\u061c", "\u200e", "\u202e", "\u2066", "\ufffd", "\ufffe", "\ue000",
           "\U000e0041", "\U0010ffff", "\ufff9"]
PUNCTUATION = [".", ",", "!", "?", "...", "'", "\"", "-", "--", "_", "¿", "。", "，", "…", "—", "'s", "'T", "’s", "/", "\\", "~", "^", "`", "$", "+", "<", "=", "|", "·", "״", "՞"]
BLOCKS = [(0x20, 0x7f), (0xa0, 0x180), (0x180, 0x250), (0x300, 0x370), (0x370, 0x400), (0x400, 0x530), (0x590, 0x600), (0x600, 0x700), (0x900, 0xe00),
          (0xe00, 0xf00), (0xf00, 0x1000), (0x1000, 0x1200), (0x1200, 0x1400), (0x1e00, 0x2000), (0x2000, 0x2070), (0x2070, 0x2200),
          (0x2460, 0x2600), (0x3000, 0x3100), (0x3100, 0x3400), (0x4e00, 0x5200), (0xac00, 0xad00), (0xf900, 0xfb00), (0xfb00, 0xfe00),
          (0xfe00, 0xfff0), (0x1d400, 0x1d500), (0x1f300, 0x1f700), (0x20000, 0x20100)]


def piece(chance, special):
    kind = chance.random()
    if kind < 0.45:
        return chance.choice(WORDS)
    if kind < 0.60:
        return chance.choice(SPACES)
    if kind < 0.68:
        return chance.choice(PUNCTUATION)
    if kind < 0.74:
        return chance.choice(EMOJI)
    if kind < 0.79:
        return chance.choice("aeınоعकか가A") + "".join(chance.choice(MARKS) for _ in range(chance.randrange(1, 5)))
    if kind < 0.83:
        return chance.choice(CONTROL)
    if kind < 0.88:
        low, high = chance.choice(BLOCKS)
        return "".join(chr(chance.randrange(low, high)) for _ in range(chance.randrange(1, 5)))
    if kind < 0.91:
        return str(chance.randrange(10 ** chance.randrange(1, 12)))
    if kind < 0.93:
        return chance.choice("a 1.水\n'é") * chance.randrange(1, 40)
    if special:
        token = chance.choice(special)
        return token if chance.random() < 0.8 else token[:chance.randrange(len(token) + 1)]
    return chance.choice(WORDS).upper()


def texts(count, special=(), seed=1):
    """COUNT texts of up to a few hundred characters; SPECIAL are tokens that stand in some of them."""
    chance = random.Random(seed)
    made = ["", " ", "  ", "\n", "a"]
    while len(made) < count:
        length = chance.choice((1, 2, 3, 5, 8, 13, 40, 100))
        space = chance.random() < 0.7
        text = ""
        for _ in range(chance.randrange(length) + 1):
            text += piece(chance, special) + (" " if space and chance.random() < 0.8 else "")
        made.append(text)
    return made[:count]
