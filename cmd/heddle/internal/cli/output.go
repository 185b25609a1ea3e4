package cli

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

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

// Wide reports whether nothing is to be shortened.
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

// PrintFindings is Print for an object with problems in it: [ErrFindings] if
// there are any.
func (o *Output) PrintFindings(c *cobra.Command, object any, table string, problems int) error {
	if err := o.Print(c, object, table); err != nil || problems == 0 {
		return err
	}
	return ErrFindings
}
