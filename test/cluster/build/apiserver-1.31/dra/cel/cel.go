// Package cel stands for the package of k8s.io/dynamic-resource-allocation v0.31,
// which module proxies no longer serve. kube-apiserver 1.31 needs it for
// resource.k8s.io/v1alpha3 alone, and serves that only if it is asked to.
package cel

import (
	"k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

type compiler struct{}

// CompilationResult is upstream's, as far as it is used.
type CompilationResult struct {
	Error *cel.Error
}

// GetCompiler returns a compiler that rejects every expression.
func GetCompiler() *compiler { return &compiler{} }

// CompileCELExpression rejects the expression.
func (*compiler) CompileCELExpression(string, environment.Type) CompilationResult {
	return CompilationResult{Error: &cel.Error{Type: cel.ErrorTypeInvalid, Detail: "this API server has no device selectors"}}
}
