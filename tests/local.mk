# Test scripts; C tests are listed beside the code they test (src/*/local.mk).
TEST_EXTENSIONS = .sh .py
SH_LOG_COMPILER = $(SHELL)
PY_LOG_COMPILER = python3

dist_check_SCRIPTS += tests/scripts/check_includes.sh tests/scripts/check_style.sh tests/scripts/check_units.sh \
	tests/scripts/check_shell.sh tests/scripts/check_gpu_run.sh tests/scripts/check_ptxas.sh
TESTS += $(dist_check_SCRIPTS)

# Behaviour tests start the real processes; what they share is in harness.py.
EXTRA_DIST += tests/support/jinja_oracle.py tests/behaviour/harness.py tests/behaviour/fcgi_client.py tests/behaviour/front_common.py
behaviour_tests = tests/behaviour/test_nginx_site.py tests/behaviour/test_nginx_stack.py tests/behaviour/test_openai.py \
	tests/behaviour/test_tool.py tests/behaviour/test_checkpoint.py tests/behaviour/test_moe.py tests/behaviour/test_render.py \
	tests/reference/test_oracle.py tests/reference/test_shapes.py \
	tests/behaviour/test_observe.py tests/behaviour/test_limits.py tests/behaviour/test_order.py tests/behaviour/test_sampling.py
behaviour_tests += tests/behaviour/test_output.py tests/behaviour/test_front_fcgi.py tests/behaviour/test_front_streams.py \
	tests/behaviour/test_front_faults.py tests/behaviour/test_front_master.py tests/behaviour/test_bench_serve.py tests/behaviour/test_sim.py \
	tests/behaviour/test_speculation.py tests/behaviour/test_eval.py tests/behaviour/test_quantise.py
dist_check_SCRIPTS += $(behaviour_tests)
