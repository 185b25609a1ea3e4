// Package rule compiles and evaluates the expressions of label rules: CEL
// (https://cel.dev) over the facts of one machine.
//
// Expressions come from an operator and facts from hardware, so both are
// bounded: length, estimated cost and cost while running. The package decides
// values and never writes a label.
package rule

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/checker"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/ext"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/config/model"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/strict"
	"github.com/heddle-dev/heddle/api/wellknown"
)

const (
	// MaxLength is the longest expression, in characters.
	MaxLength = 2048
	// MaxCost bounds what one expression may cost, in CEL's units of about one
	// comparison each: estimated for a machine of maxItems items in each list,
	// and counted while it runs. All of it takes a fraction of a second.
	MaxCost = 250_000
	// maxItems and maxText are the sizes of lists and texts that the estimate
	// assumes where the expression does not limit them.
	maxItems = 64
	maxText  = 256
)

// ErrCost is the error of an expression that is too costly.
var ErrCost = errors.New("too costly")

// rule is a compiled rule.
type rule struct {
	value, when cel.Program
}

// CEL compiles rules. Its environment, about a megabyte, is built with
// the first rule. The zero value is ready; it is not safe for concurrent use.
type CEL struct {
	env   *cel.Env
	rules map[[3]string]*rule
}

// Compile implements [config.RuleCompiler]. Equal rules are compiled once.
func (c *CEL) Compile(key, value, when string) (config.Rule, []*strict.Error) {
	if r, ok := c.rules[[3]string{key, value, when}]; ok {
		return r, nil
	}
	r := &rule{}
	var faults []*strict.Error
	var err error
	if r.value, err = c.program(value, cel.StringType); err != nil {
		faults = append(faults, &strict.Error{Path: "value", Err: err})
	}
	if when != "" {
		if r.when, err = c.program(when, cel.BoolType); err != nil {
			faults = append(faults, &strict.Error{Path: "when", Err: err})
		}
	}
	if faults != nil {
		return nil, faults
	}
	if c.rules == nil {
		c.rules = map[[3]string]*rule{}
	}
	c.rules[[3]string{key, value, when}] = r
	return r, nil
}

func (c *CEL) program(text string, want *cel.Type) (cel.Program, error) {
	switch {
	case strings.TrimSpace(text) == "":
		return nil, errors.New("empty expression")
	case len(text) > MaxLength:
		return nil, fmt.Errorf("%d characters, more than %d", len(text), MaxLength)
	}
	if c.env == nil {
		env, err := newEnv()
		if err != nil {
			return nil, fmt.Errorf("prepare CEL: %w", err)
		}
		c.env = env
	}
	compiled, issues := c.env.Compile(text)
	if err := issues.Err(); err != nil {
		return nil, compileError(issues)
	}
	if got := compiled.OutputType(); !got.IsExactType(want) {
		return nil, typeError(got, want)
	}
	if err := uncounted(compiled); err != nil {
		return nil, err
	}
	if value, literal := literalText(compiled); literal {
		if err := wellknown.CheckValue(value); err != nil {
			return nil, fmt.Errorf("invalid label value: %w", err)
		}
	}
	cost, err := c.env.EstimateCost(compiled, sizes{})
	if err != nil {
		return nil, fmt.Errorf("estimate cost: %w", err)
	}
	if cost.Max > MaxCost {
		return nil, fmt.Errorf("%w: up to %d units on a machine with %d of everything, more than %d",
			ErrCost, cost.Max, maxItems, MaxCost)
	}
	program, err := c.env.Program(compiled, cel.CostLimit(MaxCost))
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	return program, nil
}

// newEnv declares the variables by the JSON names of Facts and of Machine, so
// that a field which does not exist is a compile error.
func newEnv() (*cel.Env, error) {
	return cel.NewEnv(
		ext.NativeTypes(reflect.TypeFor[*model.Facts](), ext.ParseStructTag("json")),
		ext.Strings(),
		cel.Variable("node", cel.StringType),
		cel.Variable("gpu", cel.ObjectType("model.GPU")),
		cel.Variable("cpu", cel.ObjectType("model.CPU")),
		cel.Variable("rdma", cel.ObjectType("model.RDMA")),
		cel.Variable("machine", cel.ObjectType("machine.Machine")),
		cel.ParserExpressionSizeLimit(MaxLength),
		cel.ParserRecursionLimit(64),
		cel.ASTValidators(cel.ValidateRegexLiterals()),
	)
}

// compileError is CEL's first complaint on one line, with its place.
func compileError(issues *cel.Issues) error {
	first := issues.Errors()[0]
	at := fmt.Sprintf("column %d", first.Location.Column()+1)
	if first.Location.Line() > 1 {
		at = fmt.Sprintf("line %d, %s", first.Location.Line(), at)
	}
	return fmt.Errorf("%s: %s", at, first.Message)
}

func typeError(got, want *cel.Type) error {
	if want == cel.StringType {
		return fmt.Errorf("is %s, not a text: wrap it in string()", got)
	}
	return fmt.Errorf("is %s, not true or false", got)
}

// literalText returns the expression's value if it is a quoted text and no more.
func literalText(a *cel.Ast) (string, bool) {
	expr := a.NativeRep().Expr()
	if expr.AsLiteral() == nil {
		return "", false
	}
	s, ok := expr.AsLiteral().(types.String)
	return string(s), ok
}

// Eval gives the label's value; ok is false where the rule gives
// none: when is false, or the value is empty. An error is a fault of this
// machine's facts or of the rule: an index out of range, a value that is no
// label value, [ErrCost].
func (r *rule) Eval(f *model.Facts) (value string, ok bool, err error) {
	vars := map[string]any{"node": f.Node, "gpu": &f.GPU, "cpu": &f.CPU, "rdma": &f.RDMA, "machine": f.Machine}
	if f.Machine == nil {
		vars["machine"] = &machine.Machine{}
	}
	if r.when != nil {
		out, err := eval(r.when, vars)
		if err != nil {
			return "", false, fmt.Errorf("when: %w", err)
		}
		if out != true {
			return "", false, nil
		}
	}
	out, err := eval(r.value, vars)
	if err != nil {
		return "", false, fmt.Errorf("value: %w", err)
	}
	value, _ = out.(string)
	if err := wellknown.CheckValue(value); err != nil {
		return "", false, fmt.Errorf("invalid label value: %w", err)
	}
	return value, value != "", nil
}

func eval(p cel.Program, vars map[string]any) (any, error) {
	out, _, err := p.Eval(vars)
	if err != nil {
		if strings.Contains(err.Error(), "cost limit") {
			return nil, fmt.Errorf("%w: more than %d units", ErrCost, MaxCost)
		}
		return nil, fmt.Errorf("evaluate: %w", err)
	}
	return out.Value(), nil
}

// uncounted rejects the functions that CEL counts no cost for: each can make
// its text many times longer, and a few of them a text larger than the machine.
func uncounted(a *cel.Ast) (err error) {
	ast.PreOrderVisit(a.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.CallKind {
			return
		}
		switch name := e.AsCall().FunctionName(); name {
		case "format", "strings.quote":
			err = fmt.Errorf("%s is not available here: join texts with +", name)
		}
	}))
	return err
}

// sizes gives CEL's cost estimate the largest size of lists and texts.
type sizes struct{}

// EstimateSize implements [checker.CostEstimator].
func (sizes) EstimateSize(node checker.AstNode) *checker.SizeEstimate {
	if t := node.Type(); t != nil && (t.Kind() == types.ListKind || t.Kind() == types.MapKind) {
		return &checker.SizeEstimate{Max: maxItems}
	}
	return &checker.SizeEstimate{Max: maxText}
}

// EstimateCallCost implements [checker.CostEstimator].
func (sizes) EstimateCallCost(_, _ string, _ *checker.AstNode, _ []checker.AstNode) *checker.CallEstimate {
	return nil
}
