/* conf.c: owns the table made from options.def and every rule on option values.  Does not know what options are for.
 * Invariant: a struct conf that left conf_load satisfies every range of options.def and conf_check. */
#include "base/conf.h"

#include <ctype.h>
#include <errno.h>
#include <ini.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum kind { KIND_INT, KIND_REAL, KIND_BOOL, KIND_TEXT, KIND_ENUM };

struct option {
	const char *section, *name;
	enum kind   kind;
	size_t      offset;
	const char *initial; /* as text, for TEXT, ENUM and BOOL */
	double      real_initial, real_min, real_max;
	int64_t     int_initial, int_min, int_max;
	const char *unit, *words, *doc;
};

static const struct option options[] = {
#define AT(section, name) offsetof(struct conf, section##_##name)
#define OPTION_INT(s, n, v, lo, hi, u, d)  { #s, #n, KIND_INT, AT(s, n), "", 0, 0, 0, v, lo, hi, u, "", d },
#define OPTION_REAL(s, n, v, lo, hi, u, d) { #s, #n, KIND_REAL, AT(s, n), "", v, lo, hi, 0, 0, 0, u, "", d },
#define OPTION_BOOL(s, n, v, d)            { #s, #n, KIND_BOOL, AT(s, n), v, 0, 0, 0, 0, 0, 0, "", "on|off", d },
#define OPTION_TEXT(s, n, v, d)            { #s, #n, KIND_TEXT, AT(s, n), v, 0, 0, 0, 0, 0, 0, "", "", d },
#define OPTION_ENUM(s, n, v, w, d)         { #s, #n, KIND_ENUM, AT(s, n), v, 0, 0, 0, 0, 0, 0, "", w, d },
#include "base/options.def"
#undef OPTION_INT
#undef OPTION_REAL
#undef OPTION_BOOL
#undef OPTION_TEXT
#undef OPTION_ENUM
#undef AT
};
enum { OPTION_COUNT = sizeof options / sizeof options[0] };

static void *field(const struct conf *conf, const struct option *option)
{
	return (char *)(uintptr_t)conf + option->offset;
}

static const struct option *find(const char *section, const char *name)
{
	for (size_t i = 0; i < OPTION_COUNT; i++)
		if (!strcmp(options[i].section, section) && !strcmp(options[i].name, name))
			return &options[i];
	return NULL;
}

static bool known_section(const char *section)
{
	for (size_t i = 0; i < OPTION_COUNT; i++)
		if (!strcmp(options[i].section, section))
			return true;
	return false;
}

static bool word_allowed(const char *words, const char *value)
{
	size_t len = strlen(value);
	for (const char *word = words; *word;) {
		size_t n = strcspn(word, "|");
		if (n == len && !memcmp(word, value, n))
			return true;
		word += n + (word[n] == '|');
	}
	return false;
}

static enum status set_int(const struct option *o, int64_t *target, const char *value, struct error *error)
{
	static const char suffixes[] = "KMG";
	char             *end;
	long long         number;
	const char       *suffix;

	errno = 0;
	number = strtoll(value, &end, 10);
	if (end == value || errno)
		goto bad;
	suffix = *end ? strchr(suffixes, toupper((unsigned char)*end)) : NULL;
	if (suffix) {
		if (__builtin_mul_overflow(number, 1LL << (10 * (suffix - suffixes + 1)), &number))
			goto bad;
		end++;
	}
	if (*end || number < o->int_min || number > o->int_max)
		goto bad;
	*target = number;
	return STATUS_OK;
bad:
	return error_set_param(error, STATUS_INVALID, o->name, "%s.%s = %s: not a whole number in the allowed range %lld…%lld%s%s",
	    o->section, o->name, value, (long long)o->int_min, (long long)o->int_max, *o->unit ? " " : "", o->unit);
}

static enum status set_real(const struct option *o, double *target, const char *value, struct error *error)
{
	char  *end;
	double number = strtod(value, &end);

	if (end == value || *end || !isfinite(number) || number < o->real_min || number > o->real_max)
		return error_set_param(error, STATUS_INVALID, o->name, "%s.%s = %s: not a number in the allowed range %g…%g",
		    o->section, o->name, value, o->real_min, o->real_max);
	*target = number;
	return STATUS_OK;
}

static enum status set_option(struct conf *conf, const struct option *o, const char *value, struct error *error)
{
	switch (o->kind) {
	case KIND_INT:
		return set_int(o, field(conf, o), value, error);
	case KIND_REAL:
		return set_real(o, field(conf, o), value, error);
	case KIND_BOOL:
	case KIND_ENUM:
		if (!word_allowed(o->words, value))
			return error_set_param(error, STATUS_INVALID, o->name, "%s.%s = %s: allowed values are %s", o->section,
			    o->name, value, o->words);
		if (o->kind == KIND_BOOL)
			*(bool *)field(conf, o) = !strcmp(value, "on");
		else
			strcpy(field(conf, o), value);
		return STATUS_OK;
	case KIND_TEXT:
		if (strlen(value) > CONF_TEXT_MAX)
			return error_set_param(error, STATUS_INVALID, o->name, "%s.%s: %zu bytes, at most %d are allowed", o->section,
			    o->name, strlen(value), CONF_TEXT_MAX);
		strcpy(field(conf, o), value);
		return STATUS_OK;
	}
	return STATUS_INTERNAL;
}

void conf_defaults(struct conf *ret)
{
	memset(ret, 0, sizeof *ret);
	for (size_t i = 0; i < OPTION_COUNT; i++) {
		const struct option *o = &options[i];
		if (o->kind == KIND_INT)
			*(int64_t *)field(ret, o) = o->int_initial;
		else if (o->kind == KIND_REAL)
			*(double *)field(ret, o) = o->real_initial;
		else
			set_option(ret, o, o->initial, NULL);
	}
}

enum status conf_set(struct conf *conf, const char *name, const char *value, struct error *error)
{
	char        section[CONF_SECTION_MAX + 1];
	const char *dot = strchr(name, '.');

	if (dot && (size_t)(dot - name) < sizeof section) {
		memcpy(section, name, (size_t)(dot - name));
		section[dot - name] = '\0';
		const struct option *o = find(section, dot + 1);
		if (o)
			return set_option(conf, o, value, error);
	}
	return error_set_param(error, STATUS_INVALID, name, "unknown option %s (write SECTION.NAME; --dump-config lists them)", name);
}

/* ---- file ------------------------------------------------------------------------------------------------------- */

struct load {
	const char   *path;
	FILE         *file;
	unsigned      line;
	struct conf   conf;
	bool          seen[OPTION_COUNT];
	char          section[CONF_SECTION_MAX + 2]; /* of the last [header] the reader saw */
	enum status   status;
	struct error *error;
};

static enum status __attribute__((format(printf, 2, 3))) load_fail(struct load *load, const char *format, ...)
{
	char    text[ERROR_MESSAGE_MAX - 100];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	return load->status = error_set(load->error, STATUS_INVALID, "%s:%u: %s", load->path, load->line, text);
}

/* One line without its newline; −1 at the end of the file and on an error. */
static int read_text(struct load *load, char ret[CONF_LINE_MAX + 1])
{
	int len = 0, c;

	while ((c = getc(load->file)) != EOF && c != '\n') {
		if (c == '\0' || len == CONF_LINE_MAX) {
			load->line++;
			if (c == '\0')
				load_fail(load, "the line holds a NUL byte");
			else
				load_fail(load, "the line is longer than %d bytes", CONF_LINE_MAX);
			return -1;
		}
		ret[len++] = (char)c;
	}
	if (c == EOF && len == 0)
		return -1;
	load->line++;
	ret[len] = '\0';
	return len;
}

/* Feeds inih one line.  inih would cut long lines and section names and join indented lines; here they are errors. */
static char *read_line(char *buffer, int size, void *context)
{
	struct load *load = context;
	char         line[CONF_LINE_MAX + 1];
	int          read = load->status ? -1 : read_text(load, line);
	size_t       len = (size_t)read;

	if (read < 0)
		return NULL;
	size_t blank = strspn(line, " \t\r");
	if (blank && line[blank] && line[blank] != '#' && line[blank] != ';') {
		load_fail(load, "a line must not start with blanks: \"%.40s\"", line);
		return NULL;
	}
	if (line[0] == '[') {
		size_t name = strcspn(line + 1, "]");
		if (line[1 + name] != ']' || name == 0 || name > CONF_SECTION_MAX) {
			load_fail(load, "section names have 1 to %d bytes and end with ]", CONF_SECTION_MAX);
			return NULL;
		}
		memcpy(load->section, line + 1, name);
		load->section[name] = '\0';
		const char *rest = line + 1 + name + 1;
		rest += strspn(rest, " \t\r");
		if (*rest && *rest != ';' && *rest != '#') { /* inih would not look at it */
			load_fail(load, "nothing may follow the section's name: \"%.40s\"", rest);
			return NULL;
		}
		if (!known_section(load->section)) {
			load_fail(load, "unknown section [%s]", load->section);
			return NULL;
		}
	}
	if (len + 2 > (size_t)size) {
		load_fail(load, "the line is longer than %d bytes", size - 2);
		return NULL;
	}
	memcpy(buffer, line, len);
	memcpy(buffer + len, "\n", 2);
	return buffer;
}

static int on_value(void *context, const char *section, const char *name, const char *value)
{
	struct load         *load = context;
	const struct option *o = find(section, name);
	struct error         why;

	if (load->status)
		return 0;
	if (!o) {
		load_fail(load, "unknown option %s in section [%s]", name, section);
		return 0;
	}
	if (load->seen[o - options]) {
		load_fail(load, "%s.%s is set twice", section, name);
		return 0;
	}
	load->seen[o - options] = true;
	if (set_option(&load->conf, o, value, &why)) {
		load_fail(load, "%s", why.message);
		return 0;
	}
	return 1;
}

enum status conf_load(const char *path, struct conf *ret, struct error *error)
{
	struct load load = { .path = path, .error = error };
	enum status status;
	int         line;

	load.file = fopen(path, "re");
	if (!load.file)
		return error_set(error, STATUS_IO, "%s: %s", path, strerror(errno));
	conf_defaults(&load.conf);
	line = ini_parse_stream(read_line, &load, on_value, &load);
	if (!load.status && ferror(load.file))
		load.status = error_set(error, STATUS_IO, "%s: %s", path, strerror(errno));
	fclose(load.file);
	if (!load.status && line > 0) {
		load.line = (unsigned)line;
		load_fail(&load, "neither [section], name = value, nor a comment");
	}
	if (load.status)
		return load.status;
	struct error why;
	status = conf_check(&load.conf, &why);
	if (status)
		return error_set_param(error, status, why.param, "%s: %.380s", path, why.message);
	*ret = load.conf;
	return STATUS_OK;
}

/* ---- rules across options ----------------------------------------------------------------------------------------- */

static int64_t streams_needed(const struct conf *conf)
{
	int64_t requests = conf->batcher_max_running + conf->batcher_max_queued;
	return requests + (requests + 9) / 10;
}

int64_t conf_children(const struct conf *conf)
{
	if (conf->front_children)
		return conf->front_children;
	return (streams_needed(conf) + conf->front_streams_per_front - 1) / conf->front_streams_per_front;
}

enum status conf_check(const struct conf *conf, struct error *error)
{
	int64_t children = conf_children(conf);

	if (children > 1023)
		return error_set_param(error, STATUS_INVALID, "children",
		    "front.children: %lld are needed for batcher.max_running = %lld + batcher.max_queued = %lld + 10 %% at "
		    "front.streams_per_front = %lld, allowed 1…1023; raise streams_per_front",
		    (long long)children, (long long)conf->batcher_max_running, (long long)conf->batcher_max_queued,
		    (long long)conf->front_streams_per_front);
	if (children * conf->front_streams_per_front < streams_needed(conf))
		return error_set_param(error, STATUS_INVALID, "children",
		    "front.children = %lld × front.streams_per_front = %lld is %lld, less than batcher.max_running = %lld + "
		    "batcher.max_queued = %lld + 10 %% = %lld",
		    (long long)children, (long long)conf->front_streams_per_front,
		    (long long)(children * conf->front_streams_per_front), (long long)conf->batcher_max_running,
		    (long long)conf->batcher_max_queued, (long long)streams_needed(conf));
	if (conf->batcher_block_size != 16 && conf->batcher_block_size != 32 && conf->batcher_block_size != 64)
		return error_set_param(error, STATUS_INVALID, "block_size", "batcher.block_size = %lld: allowed values are 16, 32 and 64",
		    (long long)conf->batcher_block_size);
	if (conf->batcher_step_tokens < conf->batcher_max_running)
		return error_set_param(error, STATUS_INVALID, "step_tokens",
		    "batcher.step_tokens = %lld: must be at least batcher.max_running = %lld", (long long)conf->batcher_step_tokens,
		    (long long)conf->batcher_max_running);
	if (!strcmp(conf->batcher_backend, "script") && !*conf->batcher_script_file)
		return error_set_param(error, STATUS_INVALID, "script_file", "batcher.script_file: needed with batcher.backend = script");
	size_t len = strlen(conf->service_instance);
	for (size_t i = 0; i < len; i++)
		if (!isalnum((unsigned char)conf->service_instance[i]) && conf->service_instance[i] != '-')
			len = 0;
	if (len == 0 || len > 40)
		return error_set_param(error, STATUS_INVALID, "instance",
		    "service.instance = %s: 1 to 40 letters, digits and '-' are allowed", conf->service_instance);
	if (*conf->service_run_dir != '/' || strlen(conf->service_run_dir) > 80)
		return error_set_param(error, STATUS_INVALID, "run_dir",
		    "service.run_dir = %s: an absolute path of at most 80 bytes is needed (socket names are short)", conf->service_run_dir);
	return STATUS_OK;
}

void conf_model_name(const struct conf *conf, char *ret, size_t size)
{
	const char *slash;
	char       *dot;

	if (*conf->model_name) {
		snprintf(ret, size, "%s", conf->model_name);
		return;
	}
	slash = strrchr(conf->model_path, '/');
	snprintf(ret, size, "%s", slash ? slash + 1 : conf->model_path);
	dot = strrchr(ret, '.');
	if (dot && dot != ret && !strcmp(dot, ".gguf"))
		*dot = '\0';
}

void conf_front_socket(const struct conf *conf, char *ret, size_t size)
{
	if (*conf->front_listen)
		snprintf(ret, size, "%s", conf->front_listen);
	else
		snprintf(ret, size, "%s/front.sock", conf->service_run_dir);
}

void conf_control_socket(const struct conf *conf, char *ret, size_t size)
{
	snprintf(ret, size, "%s/control.sock", conf->service_run_dir);
}

/* ---- output ------------------------------------------------------------------------------------------------------- */

static void print_value(const struct conf *conf, const struct option *o, FILE *stream)
{
	switch (o->kind) {
	case KIND_INT:
		fprintf(stream, "%lld", (long long)*(int64_t *)field(conf, o));
		break;
	case KIND_REAL:
		fprintf(stream, "%.17g", *(double *)field(conf, o));
		break;
	case KIND_BOOL:
		fputs(*(bool *)field(conf, o) ? "on" : "off", stream);
		break;
	case KIND_TEXT:
	case KIND_ENUM:
		fputs(field(conf, o), stream);
		break;
	}
}

static void print_range(const struct option *o, FILE *stream)
{
	if (o->kind == KIND_INT)
		fprintf(stream, "# %lld…%lld%s%s\n", (long long)o->int_min, (long long)o->int_max, *o->unit ? " " : "", o->unit);
	else if (o->kind == KIND_REAL)
		fprintf(stream, "# %g…%g%s%s\n", o->real_min, o->real_max, *o->unit ? " " : "", o->unit);
	else if (o->kind != KIND_TEXT)
		fprintf(stream, "# %s\n", o->words);
}

static void print_all(const struct conf *conf, FILE *stream, bool sample)
{
	for (size_t i = 0; i < OPTION_COUNT; i++) {
		const struct option *o = &options[i];
		if (i == 0 || strcmp(o->section, options[i - 1].section))
			fprintf(stream, "%s[%s]\n", i ? "\n" : "", o->section);
		if (sample) {
			fprintf(stream, "\n# %s\n", o->doc);
			print_range(o, stream);
			fputc('#', stream);
		}
		fprintf(stream, "%s = ", o->name);
		print_value(conf, o, stream);
		fputc('\n', stream);
	}
}

void conf_dump(const struct conf *conf, FILE *stream) { print_all(conf, stream, false); }

void conf_sample(FILE *stream)
{
	struct conf conf;

	conf_defaults(&conf);
	fputs("# penstock.conf: one file for penstockd, penstock-front and penstock.  Every option is shown with its default.\n"
	      "# Sizes take the suffixes K, M and G.\n\n",
	    stream);
	print_all(&conf, stream, true);
}
