package gpu

import (
	"fmt"
	"slices"
)

// Severity is the meaning of a driver's error report for a GPU.
type Severity string

// The severities.
const (
	// Ignore is a report without consequence.
	Ignore Severity = "ignore"
	// Application ends the process; the GPU is fit.
	Application Severity = "application"
	// Driver leaves it to the driver's recovery action, because the code alone
	// does not report it: the GPU is healthy unless the driver asks for something,
	// and unhealthy if the driver is too old to be asked.
	Driver Severity = "driver"
	// Fatal makes the GPU unhealthy until it has recovered.
	Fatal Severity = "fatal"
)

// Code is one error report.
type Code struct {
	// Kind is one word for reports of this sort, which metrics, Events and
	// conditions show: what the vendor calls its numbers, or [DoubleBitECC].
	Kind string
	// Number is the vendor's; 0 if the kind has no numbers.
	Number   uint64
	Severity Severity
	// Text describes the error; empty if the catalog does not.
	Text string
}

// DoubleBitECC is the kind of memory errors that could not be corrected, where
// a driver reports them apart from its numbers.
const DoubleBitECC = "DoubleBitECC"

// String names the report: its kind, number and text.
func (c Code) String() string {
	switch {
	case c.Number == 0:
		return c.Text
	case c.Text == "":
		return fmt.Sprintf("%s %d", c.Kind, c.Number)
	}
	return fmt.Sprintf("%s %d, %s", c.Kind, c.Number, c.Text)
}

// Catalog is a vendor's list of numbered error reports.
type Catalog struct {
	// Kind is [Code.Kind] of all of them.
	Kind string
	Rows []Row
}

// Row is a row of a vendor's catalog, or several that mean the same.
type Row struct {
	First, Last uint64
	Severity    Severity
	Text        string
}

// Code looks a number up. One that is not listed is for the driver to explain.
func (c *Catalog) Code(number uint64) Code {
	code := Code{Kind: c.Kind, Number: number, Severity: Driver}
	i := slices.IndexFunc(c.Rows, func(r Row) bool { return r.First <= number && number <= r.Last })
	if i >= 0 {
		code.Severity, code.Text = c.Rows[i].Severity, c.Rows[i].Text
	}
	return code
}
