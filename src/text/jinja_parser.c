/* jinja_parser.c: tokens → syntax tree, by recursive descent with the precedences of Jinja 3.1:
 *
 *      condition   a if b else c
 *      or, and, not
 *      comparison  == != < <= > >= in not-in, chained
 *      + -   then ~   then * / // %   then **   then unary - +   then postfix . [] () | is
 *
 * Owns names (interned, so that equal names are one pointer) and the refusal of what the language has and this does not.
 * Invariant: nesting is bounded, so the C stack is. */
#include "text/jinja_parts.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

struct parser {
	struct jinja_run      *run;
	struct jinja_template *jinja;
	struct jinja_token    *tokens, *token;
	size_t                 nodes;
	uint32_t               nesting, loops;
	uint32_t               uses; /* of the macro that is being read: enum jinja_uses */
};

static struct jinja_node *parse_expression(struct parser *p);
static struct jinja_node *parse_unary(struct parser *p, bool with_filter);
static void               parse_body(struct parser *p, struct jinja_nodes *ret, const char *const *ends);

/* ---- tokens ----------------------------------------------------------------- */

#define refuse(p, status, ...) jinja_refuse((p)->run, (p)->token->line, (p)->token->column, status, __VA_ARGS__)

static bool at_operator(const struct parser *p, const char *text)
{
	return p->token->type == JINJA_TOKEN_OPERATOR && p->token->len == strlen(text) && memcmp(p->token->text, text,
	    p->token->len) == 0;
}

static bool at_name(const struct parser *p, const char *name)
{
	return p->token->type == JINJA_TOKEN_NAME && strcmp(p->token->text, name) == 0;
}

static bool skip_operator(struct parser *p, const char *text)
{
	bool is = at_operator(p, text);

	p->token += is;
	return is;
}

static bool skip_name(struct parser *p, const char *name)
{
	bool is = at_name(p, name);

	p->token += is;
	return is;
}

static _Noreturn void unexpected(struct parser *p, const char *wanted)
{
	const struct jinja_token *t = p->token;

	if (t->type == JINJA_TOKEN_END)
		refuse(p, STATUS_INVALID, "the template ends where %s is expected", wanted);
	refuse(p, STATUS_INVALID, "%s is expected, not \"%.*s\"", wanted, (int)(t->len > 40 ? 40 : t->len), t->text);
}

static void expect(struct parser *p, const char *text)
{
	if (!skip_operator(p, text))
		unexpected(p, text);
}

static const char *expect_name(struct parser *p, const char *wanted)
{
	if (p->token->type != JINJA_TOKEN_NAME)
		unexpected(p, wanted);
	return jinja_intern(p->run, p->jinja, (p->token++)->text);
}

static void expect_block_end(struct parser *p)
{
	if (p->token->type != JINJA_TOKEN_BLOCK_END)
		unexpected(p, "%}");
	p->token++;
}

const char *jinja_intern(struct jinja_run *run, struct jinja_template *jinja, const char *name)
{
	for (size_t i = 0; i < jinja->name_count; i++)
		if (strcmp(jinja->names[i], name) == 0)
			return jinja->names[i];
	jinja->names = jinja_grow(run, jinja->names, jinja->name_count, &jinja->name_capacity, sizeof *jinja->names, 64);
	if (jinja->name_count == 4096)
		jinja_raise(run, STATUS_LIMIT, "the template has more than 4096 names");
	return jinja->names[jinja->name_count++] =
	           jinja_terminated(run, (struct jinja_string){ .bytes = name, .len = strlen(name) });
}

/* ---- nodes ----------------------------------------------------------------- */

static struct jinja_node *new_node(struct parser *p, enum jinja_node_type type)
{
	struct jinja_node *node = jinja_alloc(p->run, sizeof *node);

	if (++p->nodes > JINJA_NODES_MAX)
		refuse(p, STATUS_LIMIT, "the template has more than %d nodes", JINJA_NODES_MAX);
	node->type = type;
	node->line = p->token->line;
	return node;
}

static struct jinja_node *new_parent(struct parser *p, enum jinja_node_type type, struct jinja_node *a, struct jinja_node *b)
{
	struct jinja_node *node = new_node(p, type);

	node->a = a;
	node->b = b;
	return node;
}

static void add_node(struct parser *p, struct jinja_nodes *nodes, struct jinja_node *node)
{
	nodes->items = jinja_grow(p->run, nodes->items, nodes->count, &nodes->capacity, sizeof *nodes->items, 4);
	nodes->items[nodes->count++] = node;
}

static void nest(struct parser *p)
{
	if (++p->nesting > JINJA_NESTING_MAX)
		refuse(p, STATUS_LIMIT, "the template nests deeper than %d levels", JINJA_NESTING_MAX);
}

static struct jinja_node *constant(struct parser *p, struct jinja_value value)
{
	struct jinja_node *node = new_node(p, JINJA_NODE_CONSTANT);

	node->constant = value;
	return node;
}

/* ---- expressions ----------------------------------------------------------------- */

/* a, b, c: a tuple; one alone is itself.  PARSE reads an item, ENDS a name that also ends it. */
static struct jinja_node *parse_tuple(struct parser *p, struct jinja_node *(*parse)(struct parser *), const char *end,
    bool brackets)
{
	struct jinja_node *tuple = new_node(p, JINJA_NODE_TUPLE);
	bool               comma = false;

	for (;;) {
		enum jinja_token_type type = p->token->type;

		if (type == JINJA_TOKEN_VARIABLE_END || type == JINJA_TOKEN_BLOCK_END || at_operator(p, ")") || (end && at_name(p, end)))
			break;
		add_node(p, &tuple->list, parse(p));
		if (!skip_operator(p, ","))
			break;
		comma = true;
	}
	if (comma)
		return tuple;
	if (tuple->list.count)
		return tuple->list.items[0];
	if (!brackets)
		unexpected(p, "an expression");
	return tuple;
}

static void parse_arguments(struct parser *p, struct jinja_node *node)
{
	const char *names[JINJA_ARGUMENTS_MAX];

	for (bool first = true; !skip_operator(p, ")"); first = false) {
		if (!first && !skip_operator(p, ","))
			unexpected(p, ", or )");
		if (skip_operator(p, ")"))
			break;
		if (node->list.count + node->other.count >= JINJA_ARGUMENTS_MAX)
			refuse(p, STATUS_LIMIT, "a call has more than %d arguments", JINJA_ARGUMENTS_MAX);
		if (at_operator(p, "**") && !node->c) {
			p->token++;
			node->c = parse_expression(p);
		} else if (at_operator(p, "*") && !node->b && !node->c) {
			p->token++;
			node->b = parse_expression(p);
		} else if (p->token->type == JINJA_TOKEN_NAME && p->token[1].type == JINJA_TOKEN_OPERATOR && p->token[1].len == 1 &&
		    *p->token[1].text == '=') {
			names[node->other.count] = expect_name(p, "a name");
			for (size_t i = 0; i < node->other.count; i++)
				if (names[i] == names[node->other.count])
					refuse(p, STATUS_INVALID, "the argument %.60s is repeated", names[i]);
			p->token++;
			add_node(p, &node->other, parse_expression(p));
		} else {
			if (node->other.count || node->b || node->c)
				refuse(p, STATUS_INVALID, "a positional argument stands behind a named one");
			add_node(p, &node->list, parse_expression(p));
		}
	}
	if (node->other.count) {
		node->names = jinja_alloc(p->run, node->other.count * sizeof *node->names);
		memcpy(node->names, names, node->other.count * sizeof *names);
	}
}

static struct jinja_node *parse_dict(struct parser *p)
{
	struct jinja_node *node = new_node(p, JINJA_NODE_DICT);

	while (!skip_operator(p, "}")) {
		if (node->list.count) {
			expect(p, ",");
			if (skip_operator(p, "}"))
				break;
		}
		add_node(p, &node->list, parse_expression(p));
		expect(p, ":");
		add_node(p, &node->list, parse_expression(p));
	}
	return node;
}

static struct jinja_node *parse_string(struct parser *p)
{
	struct jinja_builder builder = { 0 };

	for (; p->token->type == JINJA_TOKEN_STRING; p->token++)
		jinja_put(p->run, &builder, p->token->text, p->token->len, false);
	return constant(p, jinja_built_value(p->run, &builder));
}

static struct jinja_node *parse_name(struct parser *p)
{
	static const struct {
		const char *name;
		int         value; /* 0, 1, or −1 for none */
	} constants[] = { { "true", 1 }, { "True", 1 }, { "false", 0 }, { "False", 0 }, { "none", -1 }, { "None", -1 } };
	struct jinja_node *node;

	for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
		if (skip_name(p, constants[i].name))
			return constant(p, constants[i].value < 0 ? jinja_none() : jinja_bool(constants[i].value == 1));
	node = new_node(p, JINJA_NODE_NAME);
	node->name = expect_name(p, "a name");
	p->uses |= node->name == p->jinja->varargs ? JINJA_USES_VARARGS
	    : node->name == p->jinja->kwargs       ? JINJA_USES_KWARGS
	    : node->name == p->jinja->caller       ? JINJA_USES_CALLER
	                                           : 0;
	return node;
}

static struct jinja_node *parse_primary(struct parser *p)
{
	struct jinja_node *node;

	switch (p->token->type) {
	case JINJA_TOKEN_NAME:
		return parse_name(p);
	case JINJA_TOKEN_STRING:
		return parse_string(p);
	case JINJA_TOKEN_INTEGER:
		return constant(p, jinja_int((p->token++)->integer));
	case JINJA_TOKEN_FLOAT:
		return constant(p, jinja_float((p->token++)->real));
	case JINJA_TOKEN_END:
	case JINJA_TOKEN_DATA:
	case JINJA_TOKEN_BLOCK_BEGIN:
	case JINJA_TOKEN_BLOCK_END:
	case JINJA_TOKEN_VARIABLE_BEGIN:
	case JINJA_TOKEN_VARIABLE_END:
	case JINJA_TOKEN_OPERATOR:
		break;
	}
	if (skip_operator(p, "(")) {
		node = parse_tuple(p, parse_expression, NULL, true);
		expect(p, ")");
		return node;
	}
	if (skip_operator(p, "[")) {
		node = new_node(p, JINJA_NODE_LIST);
		while (!skip_operator(p, "]")) {
			if (node->list.count) {
				expect(p, ",");
				if (skip_operator(p, "]"))
					break;
			}
			add_node(p, &node->list, parse_expression(p));
		}
		return node;
	}
	if (skip_operator(p, "{"))
		return parse_dict(p);
	unexpected(p, "an expression");
}

/* What stands between [ and ]. */
static struct jinja_node *parse_subscript(struct parser *p, struct jinja_node *object)
{
	struct jinja_node *node, *parts[3] = { NULL, NULL, NULL };
	int                part = 0;

	for (;;) {
		if (at_operator(p, ":")) {
			if (++part > 2)
				unexpected(p, "]");
			p->token++;
		} else if (at_operator(p, "]")) {
			break;
		} else if (parts[part] || at_operator(p, ",")) {
			refuse(p, STATUS_UNSUPPORTED, "an index of several parts is not supported");
		} else {
			parts[part] = parse_expression(p);
		}
	}
	p->token++;
	if (part == 0) {
		if (!parts[0])
			unexpected(p, "an index");
		return new_parent(p, JINJA_NODE_ITEM, object, parts[0]);
	}
	node = new_parent(p, JINJA_NODE_SLICE, parts[0], parts[1]);
	node->c = parts[2];
	return new_parent(p, JINJA_NODE_ITEM, object, node);
}

static struct jinja_node *parse_call(struct parser *p, struct jinja_node *callee)
{
	struct jinja_node *node = new_parent(p, JINJA_NODE_CALL, callee, NULL);

	parse_arguments(p, node);
	return node;
}

static struct jinja_node *parse_postfix(struct parser *p, struct jinja_node *node)
{
	for (;;) {
		if (skip_operator(p, ".")) {
			if (p->token->type == JINJA_TOKEN_INTEGER) {
				node = new_parent(p, JINJA_NODE_ITEM, node, constant(p, jinja_int((p->token++)->integer)));
			} else {
				node = new_parent(p, JINJA_NODE_ATTRIBUTE, node, NULL);
				node->name = expect_name(p, "a name");
			}
		} else if (skip_operator(p, "[")) {
			node = parse_subscript(p, node);
		} else if (skip_operator(p, "(")) {
			node = parse_call(p, node);
		} else {
			return node;
		}
	}
}

/* NODE | name(arguments) */
static struct jinja_node *parse_filter(struct parser *p, struct jinja_node *node)
{
	struct jinja_node *filter = new_parent(p, JINJA_NODE_FILTER, node, NULL);

	filter->name = expect_name(p, "the name of a filter");
	filter->id = jinja_filter_id(filter->name);
	if (filter->id == UINT32_MAX) {
		p->token--;
		refuse(p, STATUS_UNSUPPORTED, "there is no filter \"%.60s\"", filter->name);
	}
	if (skip_operator(p, "("))
		parse_arguments(p, filter);
	return filter;
}

/* NODE is [not] name [argument | (arguments)] */
static struct jinja_node *parse_test(struct parser *p, struct jinja_node *node)
{
	bool                  negated = skip_name(p, "not");
	struct jinja_node    *test = new_parent(p, JINJA_NODE_TEST, node, NULL);
	enum jinja_token_type type;

	test->name = expect_name(p, "the name of a test");
	test->id = jinja_test_id(test->name);
	if (test->id == UINT32_MAX) {
		p->token--;
		refuse(p, STATUS_UNSUPPORTED, "there is no test \"%.60s\"", test->name);
	}
	type = p->token->type;
	if (skip_operator(p, "(")) {
		parse_arguments(p, test);
	} else if ((type == JINJA_TOKEN_NAME && !at_name(p, "else") && !at_name(p, "or") && !at_name(p, "and")) ||
	           type == JINJA_TOKEN_STRING || type == JINJA_TOKEN_INTEGER || type == JINJA_TOKEN_FLOAT || at_operator(p, "[") ||
	           at_operator(p, "{")) {
		/* `is defined if x` and `is x in y`: names that go on with the expression */
		if (at_name(p, "is"))
			refuse(p, STATUS_INVALID, "tests cannot be chained");
		if (!at_name(p, "if") && !at_name(p, "in") && !at_name(p, "not") && !at_name(p, "recursive"))
			add_node(p, &test->list, parse_postfix(p, parse_primary(p)));
	}
	return negated ? new_parent(p, JINJA_NODE_NOT, test, NULL) : test;
}

static struct jinja_node *parse_filters(struct parser *p, struct jinja_node *node)
{
	for (;;) {
		if (skip_operator(p, "|"))
			node = parse_filter(p, node);
		else if (skip_name(p, "is"))
			node = parse_test(p, node);
		else if (skip_operator(p, "("))
			node = parse_call(p, node);
		else
			return node;
	}
}

static struct jinja_node *parse_unary(struct parser *p, bool with_filter)
{
	struct jinja_node *node;

	nest(p);
	if (skip_operator(p, "-"))
		node = new_parent(p, JINJA_NODE_NEGATE, parse_unary(p, false), NULL);
	else if (skip_operator(p, "+"))
		node = new_parent(p, JINJA_NODE_POSITIVE, parse_unary(p, false), NULL);
	else
		node = parse_primary(p);
	node = parse_postfix(p, node);
	if (with_filter)
		node = parse_filters(p, node);
	p->nesting--;
	return node;
}

/* Left-associative operators of one level. */
struct level {
	const char         *text;
	enum jinja_operator op;
};

static struct jinja_node *parse_level(struct parser *p, const struct level *level, struct jinja_node *(*parse)(struct parser *))
{
	struct jinja_node *node = parse(p);
	uint32_t           length = 0;

	for (const struct level *l = level; l->text;) {
		if (!skip_operator(p, l->text)) {
			l++;
			continue;
		}
		if (++length > JINJA_NESTING_MAX)
			refuse(p, STATUS_LIMIT, "a chain of more than %d operators", JINJA_NESTING_MAX);
		node = new_parent(p, JINJA_NODE_BINARY, node, parse(p));
		node->op = l->op;
		l = level;
	}
	return node;
}

static struct jinja_node *parse_filtered_unary(struct parser *p) { return parse_unary(p, true); }

static struct jinja_node *parse_power(struct parser *p)
{
	static const struct level level[] = { { "**", JINJA_OP_POW }, { NULL, 0 } };
	return parse_level(p, level, parse_filtered_unary);
}

static struct jinja_node *parse_product(struct parser *p)
{
	static const struct level level[] = { { "*", JINJA_OP_MUL }, { "/", JINJA_OP_DIV }, { "//", JINJA_OP_FLOOR },
		{ "%", JINJA_OP_MOD }, { NULL, 0 } };
	return parse_level(p, level, parse_power);
}

static struct jinja_node *parse_concat(struct parser *p)
{
	struct jinja_node *first = parse_product(p), *node;

	if (!at_operator(p, "~"))
		return first;
	node = new_node(p, JINJA_NODE_CONCAT);
	add_node(p, &node->list, first);
	while (skip_operator(p, "~"))
		add_node(p, &node->list, parse_product(p));
	return node;
}

static struct jinja_node *parse_sum(struct parser *p)
{
	static const struct level level[] = { { "+", JINJA_OP_ADD }, { "-", JINJA_OP_SUB }, { NULL, 0 } };
	return parse_level(p, level, parse_concat);
}

static bool comparison(struct parser *p, enum jinja_operator *ret)
{
	static const struct level all[] = { { "==", JINJA_OP_EQ }, { "!=", JINJA_OP_NE }, { "<=", JINJA_OP_LE }, { "<", JINJA_OP_LT },
		{ ">=", JINJA_OP_GE }, { ">", JINJA_OP_GT } };

	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (skip_operator(p, all[i].text)) {
			*ret = all[i].op;
			return true;
		}
	if (skip_name(p, "in")) {
		*ret = JINJA_OP_IN;
		return true;
	}
	if (at_name(p, "not") && p->token[1].type == JINJA_TOKEN_NAME && strcmp(p->token[1].text, "in") == 0) {
		p->token += 2;
		*ret = JINJA_OP_NOT_IN;
		return true;
	}
	return false;
}

static struct jinja_node *parse_comparison(struct parser *p)
{
	struct jinja_node  *first = parse_sum(p), *node = NULL;
	uint8_t             ops[JINJA_ARGUMENTS_MAX];
	enum jinja_operator op;

	while (comparison(p, &op)) {
		if (!node)
			node = new_parent(p, JINJA_NODE_COMPARE, first, NULL);
		if (node->list.count == JINJA_ARGUMENTS_MAX)
			refuse(p, STATUS_LIMIT, "a chain of more than %d comparisons", JINJA_ARGUMENTS_MAX);
		ops[node->list.count] = (uint8_t)op;
		add_node(p, &node->list, parse_sum(p));
	}
	if (!node)
		return first;
	node->ops = jinja_alloc(p->run, node->list.count);
	memcpy(node->ops, ops, node->list.count);
	return node;
}

static struct jinja_node *parse_not(struct parser *p)
{
	struct jinja_node *node;

	if (!skip_name(p, "not"))
		return parse_comparison(p);
	nest(p);
	node = new_parent(p, JINJA_NODE_NOT, parse_not(p), NULL);
	p->nesting--;
	return node;
}

/* AND and OR as lists, so that long chains do not nest. */
static struct jinja_node *parse_chain(struct parser *p, const char *word, enum jinja_node_type type,
    struct jinja_node *(*parse)(struct parser *))
{
	struct jinja_node *first = parse(p), *node;

	if (!at_name(p, word))
		return first;
	node = new_node(p, type);
	add_node(p, &node->list, first);
	while (skip_name(p, word))
		add_node(p, &node->list, parse(p));
	return node;
}

static struct jinja_node *parse_and(struct parser *p) { return parse_chain(p, "and", JINJA_NODE_AND, parse_not); }
static struct jinja_node *parse_or(struct parser *p) { return parse_chain(p, "or", JINJA_NODE_OR, parse_and); }

static struct jinja_node *parse_expression(struct parser *p)
{
	struct jinja_node *node, *condition;

	nest(p);
	node = parse_or(p);
	while (skip_name(p, "if")) {
		condition = new_parent(p, JINJA_NODE_CONDITION, parse_or(p), node);
		if (skip_name(p, "else"))
			condition->c = parse_expression(p);
		node = condition;
	}
	p->nesting--;
	return node;
}

/* ---- statements ----------------------------------------------------------------- */

static void check_target(struct parser *p, const struct jinja_node *node)
{
	if (node->type == JINJA_NODE_TUPLE) {
		for (size_t i = 0; i < node->list.count; i++)
			check_target(p, node->list.items[i]);
	} else if (node->type != JINJA_NODE_NAME && node->type != JINJA_NODE_ATTRIBUTE) {
		refuse(p, STATUS_INVALID, "only names can be assigned to");
	}
}

static struct jinja_node *parse_target_part(struct parser *p)
{
	struct jinja_node *node = parse_primary(p);

	if (node->type == JINJA_NODE_NAME && skip_operator(p, ".")) { /* of a namespace */
		node = new_parent(p, JINJA_NODE_ATTRIBUTE, node, NULL);
		node->name = expect_name(p, "a name");
	}
	return node;
}

static struct jinja_node *parse_target(struct parser *p, const char *end)
{
	struct jinja_node *node = parse_tuple(p, parse_target_part, end, false);

	check_target(p, node);
	return node;
}

static struct jinja_node *parse_if(struct parser *p)
{
	static const char *const ends[] = { "elif", "else", "endif", NULL }, *const last[] = { "endif", NULL };
	struct jinja_node       *node = new_node(p, JINJA_NODE_IF), *body;

	do {
		add_node(p, &node->list, parse_tuple(p, parse_or, NULL, false));
		expect_block_end(p);
		body = new_node(p, JINJA_NODE_SCOPE);
		parse_body(p, &body->list, ends);
		add_node(p, &node->list, body);
	} while (skip_name(p, "elif"));
	if (skip_name(p, "else")) {
		expect_block_end(p);
		node->b = new_node(p, JINJA_NODE_SCOPE);
		parse_body(p, &node->b->list, last);
	}
	p->token++; /* endif */
	return node;
}

static struct jinja_node *parse_for(struct parser *p)
{
	static const char *const ends[] = { "else", "endfor", NULL }, *const last[] = { "endfor", NULL };
	struct jinja_node       *node = new_node(p, JINJA_NODE_FOR);

	node->a = parse_target(p, "in");
	if (!skip_name(p, "in"))
		unexpected(p, "in");
	node->b = parse_tuple(p, parse_or, "recursive", false);
	if (skip_name(p, "if"))
		node->c = parse_expression(p);
	node->flag = skip_name(p, "recursive");
	expect_block_end(p);
	p->loops++;
	parse_body(p, &node->list, ends);
	p->loops--;
	if (skip_name(p, "else")) {
		expect_block_end(p);
		parse_body(p, &node->other, last);
	}
	p->token++; /* endfor */
	return node;
}

/* A chain of filters around a CONSTANT that is replaced by the text of a block. */
static struct jinja_node *parse_block_filters(struct parser *p, bool bar)
{
	struct jinja_node *node = constant(p, jinja_none());

	while (bar ? skip_operator(p, "|") : true) {
		node = parse_filter(p, node);
		bar = true;
	}
	return node;
}

static struct jinja_node *parse_set(struct parser *p)
{
	static const char *const ends[] = { "endset", NULL };
	struct jinja_node       *node = new_node(p, JINJA_NODE_SET);

	node->a = parse_target(p, NULL);
	if (skip_operator(p, "=")) {
		node->b = parse_tuple(p, parse_expression, NULL, false);
		return node;
	}
	node->type = JINJA_NODE_SET_BLOCK;
	if (at_operator(p, "|"))
		node->b = parse_block_filters(p, true);
	expect_block_end(p);
	parse_body(p, &node->list, ends);
	p->token++;
	return node;
}

/* (name, name=default, …), already open. */
static void parse_parameters(struct parser *p, struct jinja_node *node)
{
	const char *names[JINJA_ARGUMENTS_MAX];
	bool        defaults = false;

	while (!skip_operator(p, ")")) {
		if (node->list.count) {
			expect(p, ",");
			if (skip_operator(p, ")"))
				break;
		}
		if (node->list.count == JINJA_ARGUMENTS_MAX)
			refuse(p, STATUS_LIMIT, "a macro has more than %d parameters", JINJA_ARGUMENTS_MAX);
		names[node->list.count] = expect_name(p, "the name of a parameter");
		if (skip_operator(p, "=")) {
			add_node(p, &node->list, parse_expression(p));
			defaults = true;
		} else if (defaults) {
			refuse(p, STATUS_INVALID, "a parameter without a default stands behind one with");
		} else {
			add_node(p, &node->list, NULL);
		}
	}
	node->names = jinja_alloc(p->run, node->list.count * sizeof *names + 1);
	memcpy(node->names, names, node->list.count * sizeof *names);
}

/* The body of a macro: no loop around it counts, what it asks for is its own. */
static void parse_macro_body(struct parser *p, struct jinja_node *node, const char *const *ends)
{
	uint32_t loops = p->loops, uses = p->uses;

	p->loops = p->uses = 0;
	parse_body(p, &node->other, ends);
	node->id = p->uses;
	p->loops = loops;
	p->uses = uses;
	p->token++;
}

static struct jinja_node *parse_macro(struct parser *p)
{
	static const char *const ends[] = { "endmacro", NULL };
	struct jinja_node       *node = new_node(p, JINJA_NODE_MACRO);

	node->name = expect_name(p, "the name of a macro");
	expect(p, "(");
	parse_parameters(p, node);
	expect_block_end(p);
	parse_macro_body(p, node, ends);
	return node;
}

static struct jinja_node *parse_call_block(struct parser *p)
{
	static const char *const ends[] = { "endcall", NULL };
	struct jinja_node       *node = new_node(p, JINJA_NODE_CALL_BLOCK);

	node->b = new_node(p, JINJA_NODE_MACRO);
	node->b->name = p->jinja->caller;
	if (skip_operator(p, "("))
		parse_parameters(p, node->b);
	node->a = parse_expression(p);
	if (node->a->type != JINJA_NODE_CALL)
		unexpected(p, "a call");
	expect_block_end(p);
	parse_macro_body(p, node->b, ends);
	return node;
}

static struct jinja_node *parse_with(struct parser *p)
{
	static const char *const ends[] = { "endwith", NULL };
	struct jinja_node       *node = new_node(p, JINJA_NODE_WITH);
	const char              *names[JINJA_ARGUMENTS_MAX];

	while (p->token->type != JINJA_TOKEN_BLOCK_END) {
		if (node->other.count)
			expect(p, ",");
		if (node->other.count == JINJA_ARGUMENTS_MAX)
			refuse(p, STATUS_LIMIT, "more than %d variables in one with", JINJA_ARGUMENTS_MAX);
		names[node->other.count] = expect_name(p, "a name");
		expect(p, "=");
		add_node(p, &node->other, parse_expression(p));
	}
	node->names = jinja_alloc(p->run, node->other.count * sizeof *names + 1);
	memcpy(node->names, names, node->other.count * sizeof *names);
	expect_block_end(p);
	parse_body(p, &node->list, ends);
	p->token++;
	return node;
}

/* {% generation %}: marks what the model wrote, for training; its text is like any other. */
static struct jinja_node *parse_generation(struct parser *p)
{
	static const char *const ends[] = { "endgeneration", NULL };
	struct jinja_node       *node = new_node(p, JINJA_NODE_WITH);
	uint32_t                 loops = p->loops;

	expect_block_end(p);
	p->loops = 0;
	parse_body(p, &node->list, ends);
	p->loops = loops;
	p->token++;
	return node;
}

static struct jinja_node *parse_filter_block(struct parser *p)
{
	static const char *const ends[] = { "endfilter", NULL };
	struct jinja_node       *node = new_node(p, JINJA_NODE_FILTER_BLOCK);

	node->b = parse_block_filters(p, false);
	expect_block_end(p);
	parse_body(p, &node->list, ends);
	p->token++;
	return node;
}

static struct jinja_node *parse_output(struct parser *p)
{
	struct jinja_node *node = new_node(p, JINJA_NODE_OUTPUT);

	node->a = parse_tuple(p, parse_expression, NULL, false);
	return node;
}

/* {% print a, b %}: one behind the other */
static struct jinja_node *parse_print(struct parser *p)
{
	struct jinja_node *node = new_node(p, JINJA_NODE_OUTPUT);

	node->a = new_node(p, JINJA_NODE_CONCAT);
	while (p->token->type != JINJA_TOKEN_BLOCK_END) {
		if (node->a->list.count)
			expect(p, ",");
		add_node(p, &node->a->list, parse_expression(p));
	}
	return node;
}

static struct jinja_node *parse_statement(struct parser *p)
{
	static const struct {
		const char *name;
		struct jinja_node *(*parse)(struct parser *);
	} statements[] = { { "if", parse_if }, { "for", parse_for }, { "set", parse_set }, { "macro", parse_macro },
		{ "call", parse_call_block }, { "with", parse_with }, { "filter", parse_filter_block }, { "print", parse_print },
		{ "generation", parse_generation } };
	static const char *const foreign[] = { "block", "extends", "include", "import", "from", "autoescape", "do", "trans", "debug" };
	struct jinja_node       *node;

	for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
		if (skip_name(p, statements[i].name)) {
			node = statements[i].parse(p);
			expect_block_end(p);
			return node;
		}
	if (at_name(p, "break") || at_name(p, "continue")) {
		if (p->loops == 0)
			refuse(p, STATUS_INVALID, "%s outside a loop", p->token->text);
		node = new_node(p, at_name(p, "break") ? JINJA_NODE_BREAK : JINJA_NODE_CONTINUE);
		p->token++;
		expect_block_end(p);
		return node;
	}
	for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
		if (at_name(p, foreign[i]))
			refuse(p, STATUS_UNSUPPORTED, "{%% %s %%} is not supported in a chat template", foreign[i]);
	if (p->token->type != JINJA_TOKEN_NAME)
		unexpected(p, "the name of a tag");
	refuse(p, STATUS_INVALID, "unknown or misplaced tag \"%.60s\"", p->token->text);
}

/* Statements up to a tag named in ENDS, which stays the current token; without ENDS up to the end of the template. */
static void parse_body(struct parser *p, struct jinja_nodes *ret, const char *const *ends)
{
	struct jinja_node *node;

	nest(p);
	for (;;) {
		switch (p->token->type) {
		case JINJA_TOKEN_END:
			if (ends)
				unexpected(p, ends[1] ? "the end of a block" : ends[0]);
			p->nesting--;
			return;
		case JINJA_TOKEN_DATA:
			node = new_node(p, JINJA_NODE_DATA);
			node->constant = jinja_string_value(p->run, (struct jinja_string){ .bytes = p->token->text, .len = p->token->len });
			p->token++;
			break;
		case JINJA_TOKEN_VARIABLE_BEGIN:
			p->token++;
			node = parse_output(p);
			if (p->token->type != JINJA_TOKEN_VARIABLE_END)
				unexpected(p, "}}");
			p->token++;
			break;
		case JINJA_TOKEN_BLOCK_BEGIN:
			p->token++;
			for (const char *const *end = ends; end && *end; end++)
				if (at_name(p, *end)) {
					p->nesting--;
					return;
				}
			node = parse_statement(p);
			break;
		case JINJA_TOKEN_BLOCK_END:
		case JINJA_TOKEN_VARIABLE_END:
		case JINJA_TOKEN_NAME:
		case JINJA_TOKEN_STRING:
		case JINJA_TOKEN_INTEGER:
		case JINJA_TOKEN_FLOAT:
		case JINJA_TOKEN_OPERATOR:
		default:
			unexpected(p, "text or a tag");
		}
		add_node(p, ret, node);
	}
}

void jinja_parse(struct jinja_run *run, struct jinja_template *jinja, const char *source, size_t len)
{
	struct parser p = { .run = run, .jinja = jinja };
	size_t        count;

	jinja->loop = jinja_intern(run, jinja, "loop");
	jinja->caller = jinja_intern(run, jinja, "caller");
	jinja->varargs = jinja_intern(run, jinja, "varargs");
	jinja->kwargs = jinja_intern(run, jinja, "kwargs");
	p.tokens = p.token = jinja_lex(run, source, len, &count);
	parse_body(&p, &jinja->body, NULL);
}
