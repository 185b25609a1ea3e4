package rule

import (
	"fmt"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/checker"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
)

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
