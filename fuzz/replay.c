/* replay.c: a main for a fuzz target without a fuzzer: runs it over the files of REPLAY_CORPUS (a directory of the source
 * tree), or over the files named on the command line.  make check does so in every build, sanitizers included. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

enum { INPUT_MAX = 1 << 24 };

static int run_file(const char *path)
{
	FILE          *file = fopen(path, "rbe");
	unsigned char *data = malloc(INPUT_MAX), *exact;
	size_t         size;

	if (!file || !data) {
		perror(path);
		exit(EXIT_FAILURE);
	}
	size = fread(data, 1, INPUT_MAX, file);
	fclose(file);
	exact = malloc(size ? size : 1); /* of its own size, so that a sanitizer sees reads past the end */
	if (!exact)
		exit(EXIT_FAILURE);
	for (size_t i = 0; i < size; i++)
		exact[i] = data[i];
	free(data);
	LLVMFuzzerTestOneInput(exact, size);
	free(exact);
	return 1;
}

int main(int argc, char **argv)
{
	const char    *root = getenv("abs_top_srcdir");
	char           path[4096];
	struct dirent *entry;
	DIR           *directory;
	int            count = 0;

	for (int i = 1; i < argc; i++)
		count += run_file(argv[i]);
	if (argc == 1) {
		snprintf(path, sizeof path, "%s/%s", root ? root : ".", REPLAY_CORPUS);
		directory = opendir(path);
		while (directory && (entry = readdir(directory))) {
			if (entry->d_name[0] == '.')
				continue;
			snprintf(path, sizeof path, "%s/%s/%.255s", root ? root : ".", REPLAY_CORPUS, entry->d_name);
			count += run_file(path);
		}
		if (directory)
			closedir(directory);
	}
	printf("%d inputs replayed\n", count);
	return count ? EXIT_SUCCESS : EXIT_FAILURE;
}
