/* jinja_eval.c: runs a compiled template.  Owns scopes, statements and expressions, and the way in and out.  Does not own what
 * values can do (jinja_call.c, jinja_filter.c).
 *
 * Scopes are those of Jinja: a loop's body, a macro, `with`, block `set` and `generation` have their own, made anew for each
 * round; `if` has none.  A macro sees what is where it was defined, as it is when it is called.
 *
 * Invariants: run->depth counts the calls under way, run->out is where text goes; every step of the tree costs one step, every
 * loop one per round, all text by its length. */
#include "text/jinja_parts.h"

#include "base/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void run_nodes(struct jinja_run *run, const struct jinja_nodes *nodes);

/* ---- scopes ----------------------------------------------------------------- */

static struct jinja_scope *push_scope(struct jinja_run *run, struct jinja_scope *parent)
{
	struct jinja_scope *scope = jinja_alloc(run, sizeof *scope);

	scope->parent = parent;
	run->scope = scope;
	return scope;
}

static void assign(struct jinja_run *run, struct jinja_scope *scope, const char *name, struct jinja_value value)
{
	for (size_t i = 0; i < scope->count; i++)
		if (scope->variables[i].name == name) {
			scope->variables[i].value = value;
			return;
		}
	scope->variables = jinja_grow(run, scope->variables, scope->count, &scope->capacity, sizeof *scope->variables, 4);
	scope->variables[scope->count++] = (struct jinja_variable){ name, value };
}

static struct jinja_value look_up(struct jinja_run *run, const char *name)
{
	struct jinja_value value;

	for (const struct jinja_scope *scope = run->scope; scope; scope = scope->parent)
		for (size_t i = 0; i < scope->count; i++)
			if (scope->variables[i].name == name)
				return scope->variables[i].value;
	if (jinja_global(run, name, &value))
		return value;
	return jinja_undefined(run, "'%.80s' is undefined", name);
}

static void unpack(struct jinja_run *run, const struct jinja_node *target, struct jinja_value value)
{
	struct jinja_value object;
	struct jinja_list *list;

	run->line = target->line;
	if (target->type == JINJA_NODE_NAME) {
		assign(run, run->scope, target->name, value);
	} else if (target->type == JINJA_NODE_ATTRIBUTE) {
		object = jinja_evaluate(run, target->a);
		if (object.kind != JINJA_NAMESPACE)
			jinja_raise(run, STATUS_INVALID, "cannot assign attribute \"%.60s\" on a non-namespace object", target->name);
		jinja_dict_set(run, object.dict, jinja_literal(run, target->name), value);
	} else {
		list = jinja_iterate(run, value);
		if (list->count != target->list.count)
			jinja_raise(run, STATUS_INVALID, "%zu values cannot be unpacked into %zu names", list->count, target->list.count);
		for (size_t i = 0; i < list->count; i++)
			unpack(run, target->list.items[i], list->items[i]);
	}
}

/* ---- macros ----------------------------------------------------------------- */

/* Runs BODY in the current scope; what it writes is returned, not put out. */
static struct jinja_value capture(struct jinja_run *run, const struct jinja_nodes *body)
{
	struct jinja_builder  builder = { 0 }, *out = run->out;

	run->out = &builder;
	run_nodes(run, body);
	run->out = out;
	return jinja_built_value(run, &builder);
}

static const struct jinja_value *named(const struct jinja_arguments *arguments, const char *name)
{
	for (size_t i = 0; i < arguments->named_count; i++)
		if (strcmp(arguments->names[i], name) == 0)
			return &arguments->named[i];
	return NULL;
}

struct jinja_value jinja_call_macro(struct jinja_run *run, const struct jinja_function *macro, struct jinja_arguments *arguments)
{
	const struct jinja_node     *node = macro->node;
	const struct jinja_template *jinja = run->jinja;
	struct jinja_scope          *caller_scope = run->scope, *scope;
	struct jinja_value           rest = jinja_tuple_value(run, 0), others = jinja_dict_value(run), text;
	size_t                       count = node->list.count;
	uint32_t                     line = run->line;
	bool                         caller = false;

	jinja_enter(run);
	scope = push_scope(run, macro->scope);
	if (arguments->count > count && !(node->id & JINJA_USES_VARARGS))
		jinja_raise(run, STATUS_INVALID, "macro '%.60s' takes not more than %zu arguments", node->name, count);
	for (size_t i = count; i < arguments->count; i++)
		jinja_list_add(run, rest.list, arguments->values[i]);
	for (size_t i = 0; i < arguments->named_count; i++) {
		bool known = false;

		for (size_t k = 0; k < count && !known; k++) {
			known = strcmp(node->names[k], arguments->names[i]) == 0;
			if (known && k < arguments->count)
				jinja_raise(run, STATUS_INVALID, "macro '%.60s' got two values for '%.60s'", node->name, node->names[k]);
		}
		if (!known && strcmp(arguments->names[i], jinja->caller) == 0 && (node->id & JINJA_USES_CALLER)) {
			assign(run, scope, jinja->caller, arguments->named[i]);
			caller = true;
		} else if (!known) {
			if (!(node->id & JINJA_USES_KWARGS))
				jinja_raise(run, STATUS_INVALID, "macro '%.60s' takes no keyword argument '%.60s'", node->name,
				    arguments->names[i]);
			jinja_dict_set(run, others.dict, jinja_literal(run, arguments->names[i]), arguments->named[i]);
		}
	}
	if (node->id & JINJA_USES_VARARGS)
		assign(run, scope, jinja->varargs, rest);
	if (node->id & JINJA_USES_KWARGS)
		assign(run, scope, jinja->kwargs, others);
	if (!caller && (node->id & JINJA_USES_CALLER))
		assign(run, scope, jinja->caller, jinja_undefined(run, "no caller defined"));
	for (size_t i = 0; i < count; i++) { /* defaults see the parameters before them */
		const struct jinja_value *given = i < arguments->count ? &arguments->values[i] : named(arguments, node->names[i]);
		struct jinja_value        value = given ? *given
		           : node->list.items[i]        ? jinja_evaluate(run, node->list.items[i])
		                                        : jinja_undefined(run, "parameter '%.60s' was not provided", node->names[i]);

		assign(run, scope, node->names[i], value);
	}
	text = capture(run, &node->other);
	run->scope = caller_scope;
	run->line = line;
	run->depth--;
	return text;
}

/* ---- loops ----------------------------------------------------------------- */

/* The items that pass the loop's own condition. */
static struct jinja_list *filter_items(struct jinja_run *run, const struct jinja_node *node, const struct jinja_list *items)
{
	struct jinja_list  *kept = jinja_list_value(run, JINJA_LIST_PLAIN, 0).list;
	struct jinja_scope *outer = run->scope;

	for (size_t i = 0; i < items->count; i++) {
		push_scope(run, outer);
		unpack(run, node->a, items->items[i]);
		if (jinja_truth(jinja_evaluate(run, node->c)))
			jinja_list_add(run, kept, items->items[i]);
	}
	run->scope = outer;
	return kept;
}

struct jinja_value jinja_run_loop(struct jinja_run *run, const struct jinja_node *node, struct jinja_value iterable, uint32_t depth)
{
	struct jinja_list  *items = jinja_iterate(run, iterable);
	struct jinja_scope *outer = run->scope;
	struct jinja_value  loop = { .kind = JINJA_LOOP, .loop = jinja_alloc(run, sizeof *loop.loop) };
	bool                completed = false; /* a round, to its end: so the reference decides about `else` */

	jinja_enter(run);
	if (node->c)
		items = filter_items(run, node, items);
	*loop.loop = (struct jinja_loop){ .items = items, .depth = depth, .node = node, .scope = outer };
	for (size_t i = 0; i < items->count; i++) {
		struct jinja_scope *scope = push_scope(run, outer);

		jinja_spend(run, 1);
		loop.loop->at = i;
		assign(run, scope, run->jinja->loop, loop);
		unpack(run, node->a, items->items[i]);
		run_nodes(run, &node->list);
		completed = completed || run->flow == JINJA_FLOW_ON;
		if (run->flow == JINJA_FLOW_BREAK)
			break;
		run->flow = JINJA_FLOW_ON;
	}
	run->flow = JINJA_FLOW_ON;
	run->scope = outer;
	if (!completed && node->other.count) {
		push_scope(run, outer);
		run_nodes(run, &node->other);
		run->scope = outer;
	}
	run->depth--;
	return jinja_none();
}

/* ---- statements ----------------------------------------------------------------- */

/* Puts the items of *STAR and the members of **STARS behind ARGUMENTS. */
static void spread_arguments(struct jinja_run *run, const struct jinja_node *node, struct jinja_arguments *arguments)
{
	struct jinja_value  stars = node->c ? jinja_evaluate(run, node->c) : jinja_none();
	struct jinja_list  *items = node->b ? jinja_iterate(run, jinja_evaluate(run, node->b)) : NULL;
	size_t              more = items ? items->count : 0, members = 0;
	struct jinja_value *values, *named;
	const char        **names;

	if (node->c && stars.kind != JINJA_DICT)
		jinja_raise(run, STATUS_INVALID, "the argument after ** must be a mapping, not '%s'", jinja_type_name(stars));
	members = node->c ? stars.dict->count : 0;
	if (more > JINJA_ARGUMENTS_MAX || members > JINJA_ARGUMENTS_MAX)
		jinja_raise(run, STATUS_LIMIT, "a call has more than %d arguments", JINJA_ARGUMENTS_MAX);
	values = jinja_alloc(run, (arguments->count + more) * sizeof *values + 1);
	named = jinja_alloc(run, (arguments->named_count + members) * sizeof *named + 1);
	names = jinja_alloc(run, (arguments->named_count + members) * sizeof *names + 1);
	for (size_t i = 0; i < arguments->count; i++)
		values[i] = arguments->values[i];
	for (size_t i = 0; i < more; i++)
		values[arguments->count++] = items->items[i];
	for (size_t i = 0; i < arguments->named_count; i++) {
		named[i] = arguments->named[i];
		names[i] = arguments->names[i];
	}
	for (size_t i = 0; i < members; i++) {
		if (stars.dict->entries[i].key.kind != JINJA_STRING)
			jinja_raise(run, STATUS_INVALID, "keywords must be strings");
		names[arguments->named_count] = jinja_terminated(run, *stars.dict->entries[i].key.string);
		named[arguments->named_count++] = stars.dict->entries[i].value;
	}
	arguments->values = values;
	arguments->named = named;
	arguments->names = names;
}

static struct jinja_arguments evaluate_arguments(struct jinja_run *run, const struct jinja_node *node)
{
	struct jinja_arguments arguments = { .count = node->list.count, .named_count = node->other.count, .names = node->names };

	if (arguments.count + arguments.named_count) {
		arguments.values = jinja_alloc(run, (arguments.count + arguments.named_count) * sizeof *arguments.values);
		arguments.named = arguments.values + arguments.count;
	}
	for (size_t i = 0; i < arguments.count; i++)
		arguments.values[i] = jinja_evaluate(run, node->list.items[i]);
	for (size_t i = 0; i < arguments.named_count; i++)
		arguments.named[i] = jinja_evaluate(run, node->other.items[i]);
	if (node->b || node->c)
		spread_arguments(run, node, &arguments);
	return arguments;
}

/* The filters of a block: FILTER nodes around the CONSTANT that stands for TEXT. */
static struct jinja_value filter_block(struct jinja_run *run, const struct jinja_node *filter, struct jinja_value text)
{
	struct jinja_arguments arguments;

	if (filter->type == JINJA_NODE_CONSTANT)
		return text;
	text = filter_block(run, filter->a, text);
	arguments = evaluate_arguments(run, filter);
	run->line = filter->line;
	return jinja_filter(run, filter->id, text, &arguments);
}

static void run_call_block(struct jinja_run *run, const struct jinja_node *node)
{
	struct jinja_value     callee = jinja_evaluate(run, node->a->a);
	struct jinja_arguments arguments = evaluate_arguments(run, node->a), with_caller = arguments;
	struct jinja_value     caller = jinja_function_value(run, JINJA_FUNCTION_MACRO, 0, jinja_none());

	caller.function->node = node->b;
	caller.function->scope = run->scope;
	with_caller.named = jinja_alloc(run, (arguments.named_count + 1) * sizeof *with_caller.named);
	with_caller.names = jinja_alloc(run, (arguments.named_count + 1) * sizeof *with_caller.names);
	for (size_t i = 0; i < arguments.named_count; i++) {
		with_caller.named[i] = arguments.named[i];
		with_caller.names[i] = arguments.names[i];
	}
	with_caller.named[arguments.named_count] = caller;
	with_caller.names[arguments.named_count] = run->jinja->caller;
	with_caller.named_count++;
	jinja_put_text(run, run->out, jinja_call(run, callee, &with_caller));
}

/* A body in a scope of its own, its text captured when it is not to be put out. */
static struct jinja_value run_scoped(struct jinja_run *run, const struct jinja_nodes *body, bool captured)
{
	struct jinja_scope *outer = run->scope;
	struct jinja_value  text = jinja_none();

	push_scope(run, outer);
	if (captured)
		text = capture(run, body);
	else
		run_nodes(run, body);
	run->scope = outer;
	return text;
}

static void run_with(struct jinja_run *run, const struct jinja_node *node)
{
	struct jinja_scope    *outer = run->scope, *scope;
	struct jinja_variable *variables = jinja_alloc(run, node->other.count * sizeof *variables + 1);

	for (size_t i = 0; i < node->other.count; i++) /* all of them before the scope begins */
		variables[i] = (struct jinja_variable){ node->names[i], jinja_evaluate(run, node->other.items[i]) };
	scope = push_scope(run, outer);
	for (size_t i = 0; i < node->other.count; i++)
		assign(run, scope, variables[i].name, variables[i].value);
	run_nodes(run, &node->list);
	run->scope = outer;
}

static void run_if(struct jinja_run *run, const struct jinja_node *node)
{
	for (size_t i = 0; i + 1 < node->list.count; i += 2)
		if (jinja_truth(jinja_evaluate(run, node->list.items[i]))) {
			run_nodes(run, &node->list.items[i + 1]->list);
			return;
		}
	if (node->b)
		run_nodes(run, &node->b->list);
}

static void run_node(struct jinja_run *run, const struct jinja_node *node)
{
	struct jinja_value value;

	run->line = node->line;
	switch (node->type) {
	case JINJA_NODE_DATA:
		jinja_put_string(run, run->out, *node->constant.string);
		break;
	case JINJA_NODE_OUTPUT:
		jinja_put_text(run, run->out, jinja_evaluate(run, node->a));
		break;
	case JINJA_NODE_IF:
		run_if(run, node);
		break;
	case JINJA_NODE_FOR:
		jinja_run_loop(run, node, jinja_evaluate(run, node->b), 0);
		break;
	case JINJA_NODE_SET:
		value = jinja_evaluate(run, node->b);
		unpack(run, node->a, value);
		break;
	case JINJA_NODE_SET_BLOCK:
		value = run_scoped(run, &node->list, true);
		unpack(run, node->a, node->b ? filter_block(run, node->b, value) : value);
		break;
	case JINJA_NODE_MACRO:
		value = jinja_function_value(run, JINJA_FUNCTION_MACRO, 0, jinja_none());
		value.function->node = node;
		value.function->scope = run->scope;
		assign(run, run->scope, node->name, value);
		break;
	case JINJA_NODE_CALL_BLOCK:
		run_call_block(run, node);
		break;
	case JINJA_NODE_FILTER_BLOCK:
		value = run_scoped(run, &node->list, true);
		jinja_put_text(run, run->out, filter_block(run, node->b, value));
		break;
	case JINJA_NODE_WITH:
		run_with(run, node);
		break;
	case JINJA_NODE_BREAK:
		run->flow = JINJA_FLOW_BREAK;
		break;
	case JINJA_NODE_CONTINUE:
		run->flow = JINJA_FLOW_CONTINUE;
		break;
	default: /* expressions are no statements: the parser makes none */
		break;
	}
}

static void run_nodes(struct jinja_run *run, const struct jinja_nodes *nodes)
{
	jinja_enter(run);
	for (size_t i = 0; i < nodes->count && run->flow == JINJA_FLOW_ON; i++) {
		jinja_spend(run, 1);
		run_node(run, nodes->items[i]);
	}
	run->depth--;
}

/* ---- expressions ----------------------------------------------------------------- */

static _Noreturn void no_operation(struct jinja_run *run, const char *operation, struct jinja_value a, struct jinja_value b)
{
	if (a.kind == JINJA_UNDEFINED || b.kind == JINJA_UNDEFINED) {
		struct jinja_value missing = a.kind == JINJA_UNDEFINED ? a : b;
		jinja_raise(run, STATUS_INVALID, "%s", missing.missing ? missing.missing : "a value is undefined");
	}
	jinja_raise(run, STATUS_INVALID, "unsupported operand types for %s: '%s' and '%s'", operation, jinja_type_name(a),
	    jinja_type_name(b));
}

static struct jinja_value repeat(struct jinja_run *run, struct jinja_value what, int64_t times)
{
	struct jinja_builder builder = { 0 };
	struct jinja_value   list;

	if (times > 0)
		jinja_spend(run, (uint64_t)times);
	if (what.kind == JINJA_STRING) {
		for (int64_t i = 0; i < times && what.string->len; i++)
			jinja_put_string(run, &builder, *what.string);
		return jinja_built_value(run, &builder);
	}
	list = jinja_list_value(run, JINJA_LIST_PLAIN, 0);
	list.kind = what.kind;
	for (int64_t i = 0; i < times && what.list->count; i++)
		for (size_t k = 0; k < what.list->count; k++)
			jinja_list_add(run, list.list, what.list->items[k]);
	return list;
}

static struct jinja_value add(struct jinja_run *run, struct jinja_value a, struct jinja_value b)
{
	struct jinja_builder builder = { 0 };
	struct jinja_value   list;

	if (a.kind == JINJA_STRING && b.kind == JINJA_STRING) {
		jinja_put_string(run, &builder, *a.string);
		jinja_put_string(run, &builder, *b.string);
		return jinja_built_value(run, &builder);
	}
	if (!jinja_is_concrete(a) || !jinja_is_concrete(b) || a.kind != b.kind)
		no_operation(run, "+", a, b);
	list = jinja_list_value(run, JINJA_LIST_PLAIN, a.list->count + b.list->count);
	list.kind = a.kind;
	for (size_t i = 0; i < a.list->count; i++)
		jinja_list_add(run, list.list, a.list->items[i]);
	for (size_t i = 0; i < b.list->count; i++)
		jinja_list_add(run, list.list, b.list->items[i]);
	return list;
}

static struct jinja_value integer_operation(struct jinja_run *run, enum jinja_operator op, int64_t a, int64_t b)
{
	int64_t result = 0;
	bool    overflow = false;

	if ((op == JINJA_OP_DIV || op == JINJA_OP_FLOOR || op == JINJA_OP_MOD) && b == 0)
		jinja_raise(run, STATUS_INVALID, "division by zero");
	switch (op) {
	case JINJA_OP_ADD: overflow = __builtin_add_overflow(a, b, &result); break;
	case JINJA_OP_SUB: overflow = __builtin_sub_overflow(a, b, &result); break;
	case JINJA_OP_MUL: overflow = __builtin_mul_overflow(a, b, &result); break;
	case JINJA_OP_DIV: return jinja_float((double)a / (double)b);
	case JINJA_OP_FLOOR:
		overflow = a == INT64_MIN && b == -1;
		if (!overflow)
			result = a / b - ((a % b != 0) && ((a < 0) != (b < 0)));
		break;
	case JINJA_OP_MOD:
		if (b != -1)
			result = a % b + ((a % b != 0 && ((a < 0) != (b < 0))) ? b : 0);
		break;
	case JINJA_OP_POW:
		if (b < 0)
			return jinja_float(pow((double)a, (double)b));
		result = 1;
		for (int64_t i = 0; i < b && !overflow && result != 0 && (a != 1); i++) {
			jinja_spend(run, 1);
			overflow = __builtin_mul_overflow(result, a, &result);
		}
		break;
	default:
		break;
	}
	if (overflow)
		jinja_raise(run, STATUS_LIMIT, "an integer does not fit 64 bits");
	return jinja_int(result);
}

static struct jinja_value number_operation(struct jinja_run *run, enum jinja_operator op, struct jinja_value a,
    struct jinja_value b)
{
	double x = jinja_as_float(a), y = jinja_as_float(b), mod;

	if (a.kind != JINJA_FLOAT && b.kind != JINJA_FLOAT)
		return integer_operation(run, op, jinja_as_int(run, a, "a number"), jinja_as_int(run, b, "a number"));
	if ((op == JINJA_OP_DIV || op == JINJA_OP_FLOOR || op == JINJA_OP_MOD) && y == 0)
		jinja_raise(run, STATUS_INVALID, "division by zero");
	mod = op == JINJA_OP_FLOOR || op == JINJA_OP_MOD ? fmod(x, y) : 0;
	switch (op) {
	case JINJA_OP_ADD: return jinja_float(x + y);
	case JINJA_OP_SUB: return jinja_float(x - y);
	case JINJA_OP_MUL: return jinja_float(x * y);
	case JINJA_OP_DIV: return jinja_float(x / y);
	case JINJA_OP_FLOOR: return jinja_float(floor((x - mod) / y + (mod != 0 && (mod < 0) != (y < 0) ? -1 : 0) + 0.5));
	case JINJA_OP_MOD: return jinja_float(mod == 0 ? copysign(0, y) : (mod < 0) != (y < 0) ? mod + y : mod);
	default: return jinja_float(pow(x, y));
	}
}

struct jinja_value jinja_binary(struct jinja_run *run, enum jinja_operator op, struct jinja_value a, struct jinja_value b)
{
	static const char *const names[] = { "+", "-", "*", "/", "//", "%", "**" };
	struct jinja_value       result;

	if (jinja_is_number(a) && jinja_is_number(b)) {
		result = number_operation(run, op, a, b);
		result.data = a.data || b.data;
		return result;
	}
	if (op == JINJA_OP_ADD)
		return add(run, a, b);
	if (op == JINJA_OP_MOD && a.kind == JINJA_STRING)
		return jinja_percent(run, *a.string, b);
	if (op == JINJA_OP_MUL && (a.kind == JINJA_STRING || jinja_is_concrete(a)) && (b.kind == JINJA_INT || b.kind == JINJA_BOOL))
		return repeat(run, a, jinja_as_int(run, b, "a number"));
	if (op == JINJA_OP_MUL && (b.kind == JINJA_STRING || jinja_is_concrete(b)) && (a.kind == JINJA_INT || a.kind == JINJA_BOOL))
		return repeat(run, b, jinja_as_int(run, a, "a number"));
	no_operation(run, op <= JINJA_OP_POW ? names[op] : "?", a, b);
}

static bool compare(struct jinja_run *run, enum jinja_operator op, struct jinja_value a, struct jinja_value b)
{
	switch (op) {
	case JINJA_OP_EQ: return jinja_equal(run, a, b);
	case JINJA_OP_NE: return !jinja_equal(run, a, b);
	case JINJA_OP_LT: return jinja_order(run, a, b) < 0;
	case JINJA_OP_LE: return jinja_order(run, a, b) <= 0;
	case JINJA_OP_GT: return jinja_order(run, a, b) > 0;
	case JINJA_OP_GE: return jinja_order(run, a, b) >= 0;
	case JINJA_OP_IN: return jinja_contains(run, b, a);
	default: return !jinja_contains(run, b, a);
	}
}

/* One bound of a slice, clamped as Python does. */
static int64_t bound(struct jinja_run *run, const struct jinja_node *node, int64_t length, bool backwards, int64_t otherwise)
{
	struct jinja_value value = node ? jinja_evaluate(run, node) : jinja_none();
	int64_t            at;

	if (value.kind == JINJA_NONE)
		return otherwise;
	at = jinja_as_int(run, value, "a slice's bound");
	if (at < 0)
		at = at < -length ? (backwards ? -1 : 0) : at + length;
	return at > length - backwards ? length - backwards : at;
}

static struct jinja_value slice(struct jinja_run *run, struct jinja_value object, const struct jinja_node *node)
{
	struct jinja_value   step_value = node->c ? jinja_evaluate(run, node->c) : jinja_none(), result;
	struct jinja_builder builder = { 0 };
	int64_t              step = step_value.kind == JINJA_NONE ? 1 : jinja_as_int(run, step_value, "a slice's step"), length,
	    from, to;

	if ((object.kind != JINJA_STRING && !jinja_is_sequence(object)) ||
	    (jinja_is_sequence(object) && (object.list->kind == JINJA_LIST_GENERATOR || object.list->kind == JINJA_LIST_VIEW)))
		jinja_raise(run, STATUS_INVALID, "%s", object.kind == JINJA_UNDEFINED && object.missing ? object.missing
		                                                                                        : "what is sliced is no sequence");
	if (step == 0)
		jinja_raise(run, STATUS_INVALID, "slice step cannot be zero");
	length = (int64_t)jinja_length(run, object);
	from = bound(run, node->a, length, step < 0, step < 0 ? length - 1 : 0);
	to = bound(run, node->b, length, step < 0, step < 0 ? -1 : length);
	if (object.kind == JINJA_STRING && step == 1) {
		size_t first = jinja_character_at(*object.string, (size_t)from);
		jinja_spend(run, object.string->len / 64);
		return jinja_string_value(run,
		    to > from ? jinja_part(*object.string, first, jinja_character_at(*object.string,
		    (size_t)to)) : (struct jinja_string){ .bytes = "" });
	}
	result = object.kind == JINJA_TUPLE ? jinja_tuple_value(run, 0) : jinja_list_value(run, JINJA_LIST_PLAIN, 0);
	if (jinja_is_sequence(object) && object.list->kind == JINJA_LIST_RANGE)
		result.list->kind = JINJA_LIST_RANGE;
	if (object.kind == JINJA_STRING) {
		object = (struct jinja_value){ .kind = JINJA_LIST, .list = jinja_iterate(run, object) };
		result.kind = JINJA_STRING;
	}
	for (int64_t i = from; step > 0 ? i < to : i > to; i += step) {
		jinja_spend(run, 1);
		if (result.kind == JINJA_STRING)
			jinja_put_string(run, &builder, *object.list->items[i].string);
		else
			jinja_list_add(run, result.list, object.list->items[i]);
		if ((step > 0 && i > INT64_MAX - step) || (step < 0 && i < INT64_MIN - step))
			break;
	}
	return result.kind == JINJA_STRING ? jinja_built_value(run, &builder) : result;
}

static struct jinja_value evaluate_list(struct jinja_run *run, const struct jinja_node *node)
{
	struct jinja_value list = node->type == JINJA_NODE_TUPLE ? jinja_tuple_value(run, node->list.count)
	                                                         : jinja_list_value(run, JINJA_LIST_PLAIN, node->list.count);

	for (size_t i = 0; i < node->list.count; i++)
		jinja_list_add(run, list.list, jinja_evaluate(run, node->list.items[i]));
	return list;
}

static struct jinja_value evaluate_dict(struct jinja_run *run, const struct jinja_node *node)
{
	struct jinja_value dict = jinja_dict_value(run);

	for (size_t i = 0; i + 1 < node->list.count; i += 2) {
		struct jinja_value key = jinja_evaluate(run, node->list.items[i]);
		jinja_dict_set(run, dict.dict, key, jinja_evaluate(run, node->list.items[i + 1]));
	}
	return dict;
}

static struct jinja_value evaluate_comparison(struct jinja_run *run, const struct jinja_node *node)
{
	struct jinja_value left = jinja_evaluate(run, node->a), right;

	for (size_t i = 0; i < node->list.count; i++) {
		right = jinja_evaluate(run, node->list.items[i]);
		run->line = node->line;
		if (!compare(run, (enum jinja_operator)node->ops[i], left, right))
			return jinja_bool(false);
		left = right;
	}
	return jinja_bool(true);
}

static struct jinja_value evaluate_concat(struct jinja_run *run, const struct jinja_node *node)
{
	struct jinja_builder builder = { 0 };

	for (size_t i = 0; i < node->list.count; i++)
		jinja_put_text(run, &builder, jinja_evaluate(run, node->list.items[i]));
	return jinja_built_value(run, &builder);
}

static struct jinja_value evaluate_chain(struct jinja_run *run, const struct jinja_node *node)
{
	struct jinja_value value = jinja_none();

	for (size_t i = 0; i < node->list.count; i++) {
		value = jinja_evaluate(run, node->list.items[i]);
		if (jinja_truth(value) == (node->type == JINJA_NODE_OR))
			break;
	}
	return value;
}

static struct jinja_value evaluate_sign(struct jinja_run *run, const struct jinja_node *node)
{
	struct jinja_value value = jinja_evaluate(run, node->a);

	if (!jinja_is_number(value))
		no_operation(run, "a sign", value, value);
	if (node->type == JINJA_NODE_NEGATE && value.kind == JINJA_FLOAT)
		return jinja_float(-value.real);
	return jinja_binary(run, node->type == JINJA_NODE_NEGATE ? JINJA_OP_SUB : JINJA_OP_ADD, jinja_int(0), value);
}

/* Calls, filters and tests. */
static struct jinja_value evaluate_call(struct jinja_run *run, const struct jinja_node *node)
{
	struct jinja_value     value = jinja_evaluate(run, node->a);
	struct jinja_arguments arguments = evaluate_arguments(run, node);

	run->line = node->line;
	switch (node->type) {
	case JINJA_NODE_FILTER: return jinja_filter(run, node->id, value, &arguments);
	case JINJA_NODE_TEST: return jinja_bool(jinja_test(run, node->id, value, &arguments));
	default: return jinja_call(run, value, &arguments);
	}
}

struct jinja_value jinja_evaluate(struct jinja_run *run, const struct jinja_node *node)
{
	struct jinja_value value = jinja_none(), other;

	jinja_enter(run);
	run->line = node->line;
	switch (node->type) {
	case JINJA_NODE_CONSTANT: value = node->constant; break;
	case JINJA_NODE_NAME: value = look_up(run, node->name); break;
	case JINJA_NODE_TUPLE:
	case JINJA_NODE_LIST: value = evaluate_list(run, node); break;
	case JINJA_NODE_DICT: value = evaluate_dict(run, node); break;
	case JINJA_NODE_CONDITION:
		if (jinja_truth(jinja_evaluate(run, node->a)))
			value = jinja_evaluate(run, node->b);
		else
			value = node->c ? jinja_evaluate(run, node->c) : jinja_undefined(run, "a conditional expression has no else");
		break;
	case JINJA_NODE_AND:
	case JINJA_NODE_OR: value = evaluate_chain(run, node); break;
	case JINJA_NODE_NOT: value = jinja_bool(!jinja_truth(jinja_evaluate(run, node->a))); break;
	case JINJA_NODE_COMPARE: value = evaluate_comparison(run, node); break;
	case JINJA_NODE_CONCAT: value = evaluate_concat(run, node); break;
	case JINJA_NODE_BINARY:
		value = jinja_evaluate(run, node->a);
		other = jinja_evaluate(run, node->b);
		run->line = node->line;
		value = jinja_binary(run, node->op, value, other);
		break;
	case JINJA_NODE_NEGATE:
	case JINJA_NODE_POSITIVE: value = evaluate_sign(run, node); break;
	case JINJA_NODE_ATTRIBUTE:
		value = jinja_evaluate(run, node->a);
		run->line = node->line;
		value = jinja_attribute(run, value, node->name);
		break;
	case JINJA_NODE_ITEM:
		value = jinja_evaluate(run, node->a);
		if (node->b->type == JINJA_NODE_SLICE) {
			run->line = node->line;
			value = slice(run, value, node->b);
			break;
		}
		other = jinja_evaluate(run, node->b);
		run->line = node->line;
		value = jinja_item(run, value, other);
		break;
	case JINJA_NODE_CALL:
	case JINJA_NODE_FILTER:
	case JINJA_NODE_TEST: value = evaluate_call(run, node); break;
	default: /* statements and slices are no expressions: the parser makes none */
		break;
	}
	run->depth--;
	return value;
}

/* ---- the way in and out ----------------------------------------------------------------- */

enum status jinja_compile(const char *source, size_t len, const char *label, struct jinja_template **ret, struct error *error)
{
	struct jinja_template *jinja;
	struct jinja_run      *run;
	size_t                 bad, to = 0;
	char                  *text;

	if (len > JINJA_SOURCE_MAX)
		return error_set(error, STATUS_LIMIT, "%s: a chat template of %zu bytes; the limit is %d", label, len, JINJA_SOURCE_MAX);
	if (!utf8_valid(source, len, &bad))
		return error_set(error, STATUS_INVALID, "%s: the chat template is not UTF-8 at byte %zu", label, bad);
	jinja = calloc(1, sizeof *jinja);
	if (!jinja)
		return error_set(error, STATUS_NOMEM, "%s: no memory for a chat template", label);
	run = &jinja->run;
	run->arena.max = 256 * (len + 1024) + JINJA_MEMORY;
	run->error = error;
	run->steps = UINT64_MAX;
	jinja->label = strdup(label);
	if (!jinja->label) {
		jinja_free(jinja);
		return error_set(error, STATUS_NOMEM, "%s: no memory for a chat template", label);
	}
	run->label = jinja->label;
	if (setjmp(run->leave)) {
		enum status status = run->status;
		jinja_free(jinja);
		return status;
	}
	text = jinja_alloc(run, len + 1);
	for (size_t i = 0; i < len; i++) { /* one kind of newline */
		text[to++] = source[i] == '\r' ? '\n' : source[i];
		i += source[i] == '\r' && i + 1 < len && source[i + 1] == '\n';
	}
	jinja->source = text;
	jinja->source_len = to;
	jinja_parse(run, jinja, text, to);
	*ret = jinja;
	return STATUS_OK;
}

void jinja_free(struct jinja_template *jinja)
{
	if (!jinja)
		return;
	jinja_arena_free(&jinja->run.arena);
	free(jinja->label);
	free(jinja);
}

bool jinja_mentions(const struct jinja_template *jinja, const char *text)
{
	return memmem(jinja->source, jinja->source_len, text, strlen(text)) != NULL;
}

bool jinja_reads(const struct jinja_template *jinja, const char *name)
{
	for (size_t i = 0; i < jinja->name_count; i++)
		if (strcmp(jinja->names[i], name) == 0)
			return true;
	return false;
}

void jinja_result_free(struct jinja_result *result)
{
	free(result->text);
	free(result->spans);
	*result = (struct jinja_result){ 0 };
}

/* Bytes that a JSON value stands for, for the budgets. */
static size_t json_size(const json_t *json, unsigned depth)
{
	size_t      size = 16;
	void       *at;

	if (!json || depth > JINJA_DEPTH_MAX)
		return 0;
	if (json_is_string(json))
		return size + json_string_length(json);
	for (size_t i = 0; i < json_array_size(json); i++)
		size += json_size(json_array_get(json, i), depth + 1);
	/* jansson's iterators take no const, and change nothing */
	for (at = json_object_iter((json_t *)(uintptr_t)json); at; at = json_object_iter_next((json_t *)(uintptr_t)json, at))
		size += strlen(json_object_iter_key(at)) + json_size(json_object_iter_value(at), depth + 1);
	return size;
}

static void add_variables(struct jinja_run *run, struct jinja_scope *scope, const json_t *object, bool data)
{
	/* as above */
	for (void *at = json_object_iter((json_t *)(uintptr_t)object); at; at = json_object_iter_next((json_t *)(uintptr_t)object,
	    at)) {
		const char *name = json_object_iter_key(at);

		/* only names that the template knows can be asked for */
		for (size_t i = 0; i < run->jinja->name_count; i++)
			if (strcmp(run->jinja->names[i], name) == 0)
				assign(run, scope, run->jinja->names[i], jinja_from_json(run, json_object_iter_value(at), data));
	}
}

/* Copies the text out and makes spans of it. */
static enum status take_result(const struct jinja_builder *builder, struct jinja_result *ret)
{
	struct jinja_result result = { .text = malloc(builder->len + 1), .len = builder->len };
	size_t              count = builder->len > 0;

	for (size_t i = 1; builder->mask && i < builder->len; i++)
		count += builder->mask[i] != builder->mask[i - 1];
	result.spans = calloc(count + 1, sizeof *result.spans);
	if (!result.text || !result.spans) {
		jinja_result_free(&result);
		return STATUS_NOMEM;
	}
	if (builder->len)
		memcpy(result.text, builder->bytes, builder->len);
	result.text[builder->len] = 0;
	for (size_t i = 0; i < builder->len;) {
		size_t end = i + 1;
		bool   data = builder->mask ? builder->mask[i] : builder->data;

		if (!builder->mask)
			end = builder->len;
		while (end < builder->len && builder->mask && builder->mask[end] == builder->mask[i])
			end++;
		result.spans[result.span_count++] = (struct text_span){ .bytes = result.text + i, .len = end - i, .literal = !data };
		i = end;
	}
	*ret = result;
	return STATUS_OK;
}

enum status jinja_render(const struct jinja_template *jinja, const struct jinja_variables *variables, struct jinja_result *ret,
    struct error *error)
{
	struct jinja_run     run = { .error = error, .label = jinja->label, .jinja = jinja, .variables = variables };
	struct jinja_builder builder = { 0 };
	size_t               size = json_size(variables->server, 0) + json_size(variables->data, 0);
	enum status          status;

	run.arena.max = JINJA_MEMORY + 48 * size;
	run.steps = JINJA_STEPS + 16 * (uint64_t)size;
	run.out = &builder;
	if (setjmp(run.leave)) {
		jinja_arena_free(&run.arena);
		return run.status;
	}
	push_scope(&run, NULL);
	add_variables(&run, run.scope, variables->server, false);
	add_variables(&run, run.scope, variables->data, true);
	push_scope(&run, run.scope);
	run_nodes(&run, &jinja->body);
	status = take_result(&builder, ret);
	jinja_arena_free(&run.arena);
	return status ? error_set(error, status, "no memory for a prompt of %zu bytes", builder.len) : STATUS_OK;
}
