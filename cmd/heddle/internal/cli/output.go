package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"

	"github.com/heddle-dev/heddle/internal/notify"
)

// The formats that every command has which prints objects, besides jsonpath=TEMPLATE.
const (
	FormatTable = "table"
	// FormatWide is the table with nothing left out or shortened.
	FormatWide = "wide"
	FormatJSON = "json"
	FormatYAML = "yaml"
	// FormatName is for commands that set Names.
	FormatName = "name"

	jsonPathPrefix = "jsonpath="
	// watchInterval is the time between two reads of --watch.
	watchInterval = 2 * time.Second
)

// Output is the value of -o and --output.
type Output struct {
	Format string
	// Names lists what FormatName prints: kind/name, a line each.
	Names   []string
	formats []string
	// encoded is the object that was printed last.
	encoded []byte
}

// AddOutput adds -o to a command, with more formats than those that all commands have.
func AddOutput(c *cobra.Command, more ...string) *Output {
	o := &Output{Format: FormatTable, formats: append([]string{FormatTable, FormatWide, FormatJSON, FormatYAML}, more...)}
	o.formats = append(o.formats, jsonPathPrefix+"TEMPLATE")
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
	if !slices.Contains(o.formats, format) && !strings.HasPrefix(format, jsonPathPrefix) {
		return fmt.Errorf("not one of %s", strings.Join(o.formats, ", "))
	}
	o.Format = format
	return nil
}

// Wide reports whether output must not be shortened.
func (o *Output) Wide() bool { return o.Format == FormatWide }

// Print prints an object, or the table that shows it to people.
func (o *Output) Print(c *cobra.Command, object any, table string) (err error) {
	if o.encoded, err = json.MarshalIndent(object, "", "  "); err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	text := []byte(table)
	template, isPath := strings.CutPrefix(o.Format, jsonPathPrefix)
	switch {
	case o.Format == FormatJSON:
		text = append(slices.Clip(o.encoded), '\n')
	case o.Format == FormatYAML:
		text, err = yaml.JSONToYAML(o.encoded)
	case o.Format == FormatName:
		text = []byte(strings.Join(append(slices.Clip(o.Names), ""), "\n"))
	case isPath:
		text, err = jsonPath(o.encoded, template)
	}
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	return Write(c, string(text))
}

// jsonPath executes a template of kubectl's on an object.
func jsonPath(encoded []byte, template string) ([]byte, error) {
	path := jsonpath.New("output").AllowMissingKeys(true)
	if err := path.Parse(template); err != nil {
		return nil, err
	}
	var object any
	if err := json.Unmarshal(encoded, &object); err != nil {
		return nil, err
	}
	var text bytes.Buffer
	err := path.Execute(&text, object)
	return text.Bytes(), err
}

// PrintFindings prints like Print, and returns [ErrFindings] if the object has problems.
func (o *Output) PrintFindings(c *cobra.Command, object any, table string, problems int) error {
	if err := o.Print(c, object, table); err != nil || problems == 0 {
		return err
	}
	return ErrFindings
}

// AddWatch adds --watch to a command that prints an object: its RunE is repeated until the context ends, and
// prints whenever the object has changed.
func (o *Output) AddWatch(c *cobra.Command) {
	watch := c.Flags().BoolP("watch", "w", false, "print again whenever something changes")
	run := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if !*watch {
			return run(c, args)
		}
		out, last, between := c.OutOrStdout(), []byte(nil), ""
		defer c.SetOut(out)
		for {
			var text bytes.Buffer
			c.SetOut(&text)
			if err := run(c, args); err != nil && !errors.Is(err, ErrFindings) {
				return err
			}
			if !bytes.Equal(last, o.encoded) {
				if _, err := io.WriteString(out, between+text.String()); err != nil {
					return fmt.Errorf("write output: %w", err)
				}
				last, between = o.encoded, "\n"
			}
			if !notify.Sleep(c.Context(), watchInterval) {
				return nil
			}
		}
	}
}
