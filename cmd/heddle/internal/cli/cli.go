// Package cli holds what heddle's commands share: exit codes, -o with its
// formats, and tables for a terminal. It decides nothing about machines.
package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// Exit codes of every command.
const (
	// ExitOK means that the command did its work and nothing is wrong.
	ExitOK = 0
	// ExitFindings means that the command did its work and found a problem.
	ExitFindings = 1
	// ExitFailed means that the command could not find out: a wrong command
	// line, a file that cannot be read, a server that does not answer.
	ExitFailed = 2
)

// ErrFindings means that a command did its work and printed what it found, a
// problem among it: exit code 1 without another line.
var ErrFindings = errors.New("there are findings")

// UsageErrorf is a command line that makes no sense, in the words of kubectl.
func UsageErrorf(c *cobra.Command, format string, args ...any) error {
	return fmt.Errorf("%w\nSee '%s --help'", fmt.Errorf(format, args...), c.CommandPath())
}

// NeedCommand is for commands that only have others below them.
func NeedCommand(c *cobra.Command, _ []string) error { return UsageErrorf(c, "no command") }

// Exit turns the outcome of a command into its exit code, and writes to stderr
// what went wrong and what to do about it.
func Exit(err error, stderr io.Writer) int {
	switch {
	case err == nil:
		return ExitOK
	case errors.Is(err, ErrFindings):
		return ExitFindings
	}
	fmt.Fprintf(stderr, "heddle: %v\n", err)
	if what := remedy(err); what != "" {
		fmt.Fprintln(stderr, what)
	}
	return ExitFailed
}

// Write prints the output of a command.
func Write(c *cobra.Command, text string) error {
	if _, err := io.WriteString(c.OutOrStdout(), text); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// The formats that every command has which prints objects.
const (
	FormatTable = "table"
	// FormatWide is the table with nothing left out or shortened.
	FormatWide = "wide"
	FormatJSON = "json"
	FormatYAML = "yaml"
)

// Output is the value of -o and --output.
type Output struct {
	Format  string
	formats []string
}

// AddOutput adds -o to a command, with more formats than those that all
// commands have.
func AddOutput(c *cobra.Command, more ...string) *Output {
	o := &Output{Format: FormatTable, formats: append([]string{FormatTable, FormatWide, FormatJSON, FormatYAML}, more...)}
	c.Flags().VarP(o, "output", "o", "output `format`: "+strings.Join(o.formats, ", "))
	Complete(c, "output", o.formats...)
	return o
}

// Complete offers the values of a flag to the shell.
func Complete(c *cobra.Command, flag string, values ...string) {
	// It fails only for a flag that the command does not have.
	_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// String implements [pflag.Value].
func (o *Output) String() string { return o.Format }

// Type implements [pflag.Value].
func (o *Output) Type() string { return "string" }

// Set implements [pflag.Value].
func (o *Output) Set(format string) error {
	if !slices.Contains(o.formats, format) {
		return fmt.Errorf("not one of %s", strings.Join(o.formats, ", "))
	}
	o.Format = format
	return nil
}

// Wide reports whether output must not be shortened.
func (o *Output) Wide() bool { return o.Format == FormatWide }

// Print prints an object, or the table that shows it to people.
func (o *Output) Print(c *cobra.Command, object any, table string) error {
	var text []byte
	var err error
	switch o.Format {
	case FormatJSON:
		text, err = json.MarshalIndent(object, "", "  ")
		text = append(text, '\n')
	case FormatYAML:
		text, err = yaml.Marshal(object)
	default:
		text = []byte(table)
	}
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	return Write(c, string(text))
}

// PrintFindings prints like Print, and returns [ErrFindings] if the object has problems.
func (o *Output) PrintFindings(c *cobra.Command, object any, table string, problems int) error {
	if err := o.Print(c, object, table); err != nil || problems == 0 {
		return err
	}
	return ErrFindings
}

// Table renders rows as columns, left aligned with two spaces between and no
// blanks at the ends of lines. What does not print becomes "?": cells hold
// names that other machines made, and a terminal obeys what it is shown.
func Table(rows [][]string) string {
	columns := 0
	for _, row := range rows {
		columns = max(columns, len(row))
	}
	var padded, b strings.Builder
	w := tabwriter.NewWriter(&padded, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i := range columns {
			// A line without a cell would end the column for tabwriter.
			cell := ""
			if i < len(row) {
				cell = Printable(row[i])
			}
			_, _ = w.Write([]byte(cell + "\t"))
		}
		_, _ = w.Write([]byte("\n"))
	}
	_ = w.Flush() // A Builder does not fail.
	for line := range strings.Lines(padded.String()) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return b.String()
}

// Printable replaces what does not print, line ends among it, with "?".
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}

// Count returns a number with its noun: "1 problem", "2 problems".
func Count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return strconv.Itoa(n) + " " + noun
}

// First joins names, and counts those after the first n: "a, b and 3 more".
func First(names []string, n int, separator string) string {
	if more := len(names) - n; more > 0 {
		return strings.Join(names[:n], separator) + " and " + strconv.Itoa(more) + " more"
	}
	return strings.Join(names, separator)
}
