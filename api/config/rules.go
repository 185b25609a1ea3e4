package config

import "github.com/heddle-dev/heddle/api/config/model"

// Rule is a compiled label rule. It is safe for concurrent use.
type Rule interface {
	// Eval gives the label's value; ok is false where the rule gives none: when is
	// false, or the value is empty. An error is a fault of this machine's facts or of
	// the rule.
	Eval(facts *model.Facts) (value string, ok bool, err error)
}

// RuleLanguage is the language of label rules: rule.CEL, or
// [Uncompiled].
type RuleLanguage interface {
	// NewCompiler is for one configuration.
	NewCompiler() RuleCompiler
}

// RuleCompiler reads the expressions of the label rules of a configuration.
type RuleCompiler interface {
	// Compile compiles the rule of one label. value must be a text; when must be true or
	// false, and empty means always. It returns no rule but one [RuleError] for each
	// expression that is wrong, with the place in it.
	Compile(key, value, when string) (Rule, []*RuleError)
}

// RuleError is an error in one expression of a rule.
type RuleError struct {
	// Field is "value" or "when".
	Field string
	Err   error
}

func (e *RuleError) Error() string { return e.Field + ": " + e.Err.Error() }

func (e *RuleError) Unwrap() error { return e.Err }

// Uncompiled leaves the expressions as they are, for a program that writes no labels: CEL
// is 0.6 MB of a process' memory, and 6 MB with the pages of its program, before the first
// rule is read. How many rules there are, and their keys, is checked with it as well.
type Uncompiled struct{}

// NewCompiler gives itself.
func (u Uncompiled) NewCompiler() RuleCompiler { return u }

// Compile accepts every expression.
func (Uncompiled) Compile(string, string, string) (Rule, []*RuleError) { return nil, nil }
