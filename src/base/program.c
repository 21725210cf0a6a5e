/* program.c: owns the options of the daemons' command lines.  Does not log: what it has to say is said on standard
 * output or error before a daemon starts.  Invariant: PROGRAM_RUN means that every option was read and checked. */
#include "base/program.h"

#include "base/log.h"

#include <fcntl.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

enum { SETS_MAX = 64 };

struct arguments {
	const char *conf;
	const char *sets[SETS_MAX];
	int         set_count, listen_fd;
	bool        check, dump;
};

static void print_help(const struct program *program)
{
	printf("usage: %s [OPTION…]\n\n%s\n\n"
	       "  --config FILE              read FILE (default: %s)\n"
	       "  --set SECTION.NAME=VALUE   set one option over the file; may be repeated\n"
	       "%s"
	       "  --check-config             say what is wrong with the configuration, or nothing, and exit\n"
	       "  --dump-config              print every option with its value and exit\n"
	       "  --sample-config            print a commented configuration file with the defaults and exit\n"
	       "  --version                  print the version and exit\n"
	       "  --help                     print this and exit\n",
	    program->name, program->summary, program->default_conf,
	    program->loads_model ? "  --check-weights            look for NaN and infinity in every weight before serving\n" : "");
}

static bool add_set(const struct program *program, const char *text, struct arguments *arguments)
{
	if (arguments->set_count == SETS_MAX) {
		fprintf(stderr, "%s: more than %d --set\n", program->name, SETS_MAX);
		return false;
	}
	arguments->sets[arguments->set_count++] = text;
	return true;
}

static enum program_action read_arguments(const struct program *program, int argc, char **argv, struct arguments *ret)
{
	static const struct option options[] = { { "config", required_argument, NULL, 'c' },
		{ "set", required_argument, NULL, 's' }, { "check-config", no_argument, NULL, 'C' },
		{ "dump-config", no_argument, NULL, 'D' }, { "sample-config", no_argument, NULL, 'S' },
		{ "check-weights", no_argument, NULL, 'W' },
		{ "version", no_argument, NULL, 'V' }, { "help", no_argument, NULL, 'h' },
		{ "listen-fd", required_argument, NULL, 'L' }, { NULL, 0, NULL, 0 } };
	char *end;
	int   option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'c':
			ret->conf = optarg;
			break;
		case 's':
			if (!add_set(program, optarg, ret))
				return PROGRAM_FAILED;
			break;
		case 'W':
			if (!program->loads_model) {
				fprintf(stderr, "%s: --check-weights: there are no weights here; see --help\n", program->name);
				return PROGRAM_FAILED;
			}
			if (!add_set(program, "model.check_weights=on", ret))
				return PROGRAM_FAILED;
			break;
		case 'C':
			ret->check = true;
			break;
		case 'D':
			ret->dump = true;
			break;
		case 'S':
			conf_sample(stdout);
			return fflush(stdout) ? PROGRAM_FAILED : PROGRAM_DONE;
		case 'V':
			printf("%s %s\n", program->name, program->version);
			return PROGRAM_DONE;
		case 'h':
			print_help(program);
			return PROGRAM_DONE;
		case 'L':
			ret->listen_fd = (int)strtol(optarg, &end, 10);
			if (!program->takes_listen_fd || *end || ret->listen_fd < 3) {
				fprintf(stderr, "%s: --listen-fd %s: not a descriptor\n", program->name, optarg);
				return PROGRAM_FAILED;
			}
			break;
		default: /* getopt_long has said what is wrong */
			fprintf(stderr, "%s: see --help\n", program->name);
			return PROGRAM_FAILED;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "%s: unexpected argument %s; see --help\n", program->name, argv[optind]);
		return PROGRAM_FAILED;
	}
	return PROGRAM_RUN;
}

/* SECTION.NAME=VALUE */
static enum status set_one(struct conf *conf, const char *text, struct error *error)
{
	char        name[CONF_SECTION_MAX + CONF_TEXT_MAX];
	const char *equals = strchr(text, '=');

	if (!equals || (size_t)(equals - text) >= sizeof name)
		return error_set(error, STATUS_INVALID, "--set %s: write SECTION.NAME=VALUE", text);
	memcpy(name, text, (size_t)(equals - text));
	name[equals - text] = '\0';
	return conf_set(conf, name, equals + 1, error);
}

enum program_action program_start(const struct program *program, int argc, char **argv, struct conf *ret,
    int *ret_listen_fd)
{
	struct arguments arguments = { .conf = program->default_conf, .listen_fd = -1 };
	struct conf      conf;
	struct error     error;
	enum status      status;

	enum program_action action = read_arguments(program, argc, argv, &arguments);
	if (action != PROGRAM_RUN)
		return action;
	status = conf_load(arguments.conf, &conf, &error);
	for (int i = 0; i < arguments.set_count && !status; i++)
		status = set_one(&conf, arguments.sets[i], &error);
	if (!status && arguments.set_count)
		status = conf_check(&conf, &error);
	if (status) {
		fprintf(stderr, "%s: %s\n", program->name, error.message);
		return PROGRAM_FAILED;
	}
	if (arguments.dump)
		conf_dump(&conf, stdout);
	if (arguments.dump || arguments.check)
		return fflush(stdout) ? PROGRAM_FAILED : PROGRAM_DONE;
	*ret = conf;
	if (ret_listen_fd)
		*ret_listen_fd = arguments.listen_fd;
	return PROGRAM_RUN;
}

enum status program_open_log(const struct program *program, const struct conf *conf, struct error *error)
{
	static const char *const words[] = { "error", "warn", "info", "debug" };
	enum log_level           level = LOG_LEVEL_ERROR;

	while (level < LOG_LEVEL_DEBUG && strcmp(words[level], conf->service_log_level))
		level++;
	log_init(program->name, level);
	return *conf->service_log_file ? log_open(conf->service_log_file, error) : STATUS_OK;
}

enum status program_need_files(uint64_t count, const char *why, struct error *error)
{
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files))
		return STATUS_OK; /* cannot be; who really runs out says so */
	if (files.rlim_cur < files.rlim_max) {
		files.rlim_cur = files.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &files);
	}
	if (files.rlim_max >= count) /* RLIM_INFINITY is the largest number */
		return STATUS_OK;
	return error_set(error, STATUS_LIMIT,
	    "this process may open %llu descriptors, %llu are needed for %s; raise LimitNOFILE or ulimit -n",
	    (unsigned long long)files.rlim_max, (unsigned long long)count, why);
}

void program_harden(void)
{
	const struct rlimit none = { 0, 0 };

	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	setrlimit(RLIMIT_CORE, &none);
	for (int fd = open("/dev/null", O_RDWR); fd >= 0; fd = dup(fd)) /* a closed 0, 1 or 2 would become a socket */
		if (fd > STDERR_FILENO) {
			close(fd);
			break;
		}
}
