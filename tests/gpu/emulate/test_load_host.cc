/* Loading that decodes on the host (load_host.cu) on the made-up runtime: values are what the file means, rounded to the type, rows
 * padded with zeroes, whatever the streams' order. */
#include "expect.h"
#include "gpu/load_host.cu"

#include "support/stored.h"

enum status cuda_check(struct cuda_backend *cuda, cudaError_t code, const char *what)
{
	if (code == cudaSuccess || cuda->fault)
		return cuda->fault;
	cuda->fault = code == cudaErrorMemoryAllocation ? STATUS_NOMEM : STATUS_INTERNAL;
	error_set(&cuda->fault_error, cuda->fault, "error %d at %s", (int)code, what);
	return cuda->fault;
}

static struct cuda_backend *make_backend(enum dtype dtype)
{
	static cudaStream_t  stream = runtime_stream_make(), copies = runtime_stream_make();
	struct cuda_backend *cuda = (struct cuda_backend *)calloc(1, sizeof *cuda);

	cuda->stream = stream;
	cuda->copies = copies;
	cuda->dtype = dtype;
	return cuda;
}

template <class T> static unsigned differences(const T *got, uint32_t stride, const struct weight_desc *w)
{
	std::vector<float> row(w->columns);
	unsigned           different = 0;

	for (uint64_t r = 0; r < w->rows; r++, got += stride) {
		weight_read_row(w, r, row.data());
		for (uint32_t k = 0; k < stride; k++) {
			T wanted = from_float<T>(k < w->columns ? row[k] : 0);
			different += memcmp(&got[k], &wanted, sizeof wanted) != 0;
		}
	}
	return different;
}

/* All cases one after the other without waiting between them, then read when the compute stream has come so far. */
static void loads(enum dtype dtype, uint64_t seed)
{
	static struct backend_weight w[STORED_CASES];
	static struct stored_matrix  made[STORED_CASES];
	struct cuda_backend         *cuda = make_backend(dtype);
	char                         name[96];

	runtime_reset(seed, 0, cudaSuccess);
	for (unsigned i = 0; i < STORED_CASES; i++) {
		struct error error = {};

		made[i] = stored_make(&stored_cases[i], seed + i);
		w[i] = {};
		w[i].columns = (uint32_t)made[i].w.columns;
		w[i].stride = stride_of(w[i].columns);
		cudaMalloc(&w[i].data, made[i].w.rows * w[i].stride * element_bytes(cuda));
		expect(load_host_matrix(cuda, &w[i], &made[i].w, 1, &error) == STATUS_OK, "%s: %s", stored_name(&stored_cases[i], name),
		    error.message);
	}
	cudaStreamSynchronize(cuda->stream);
	for (unsigned i = 0; i < STORED_CASES; i++) {
		unsigned different = 0;

		FOR_DTYPE(cuda, T, different = differences((const T *)w[i].data, w[i].stride, &made[i].w));
		expect(different == 0, "%s, type %d: %u values differ", stored_name(&stored_cases[i], name), (int)dtype, different);
		cudaFree(w[i].data);
		free(made[i].bytes);
	}
	load_host_destroy(cuda);
	expect(cuda->uploaded.fill_ns && cuda->uploaded.threads && !cuda->uploaded.on_device, "work was not counted");
	free(cuda);
	expect(runtime_leaks() == 0, "%u things were not given back", runtime_leaks());
}

static bool fails(unsigned at)
{
	static const struct stored_case c = { .format = WEIGHT_Q4_0, .rows = 40, .columns = 64 };
	struct cuda_backend  *cuda = make_backend(DTYPE_BF16);
	struct stored_matrix  m = stored_make(&c, at);
	struct backend_weight w = {};
	struct error          error = {};
	bool                  failed;

	runtime_reset(at, 0, cudaSuccess);
	w.columns = w.stride = 64;
	cudaMalloc(&w.data, 40 * 64 * 2);
	runtime_reset(at, at, cudaErrorUnknown);
	failed = load_host_matrix(cuda, &w, &m.w, 1, &error) != STATUS_OK;
	expect(!failed || error.message[0], "call %u: no words", at);
	runtime_reset(at, 0, cudaSuccess);
	cudaStreamSynchronize(cuda->copies);
	cudaStreamSynchronize(cuda->stream);
	load_host_destroy(cuda);
	cudaFree(w.data);
	free(cuda);
	free(m.bytes);
	expect(runtime_leaks() == 0, "call %u: %u things were not given back", at, runtime_leaks());
	return failed;
}

int main(void)
{
	unsigned at = 1;

	SKIP_UNDER_THREAD_SANITIZER;
	for (uint64_t seed = 1; seed <= 6; seed++)
		loads(seed % 3 == 0 ? DTYPE_F32 : seed % 3 == 1 ? DTYPE_BF16 : DTYPE_F16, seed);
	while (at < 200 && fails(at))
		at++;
	expect(at > 10, "only %u calls failed", at);
	expect(runtime_errors() == 0, "%u errors of the runtime", runtime_errors());
	return finish("load_host");
}
