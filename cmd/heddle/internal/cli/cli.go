// Package cli holds what heddle's commands share: exit codes, -o with its
// formats, and tables for a terminal. It decides nothing about machines.
package cli

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
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
// what went wrong.
func Exit(err error, stderr io.Writer) int {
	switch {
	case err == nil:
		return ExitOK
	case errors.Is(err, ErrFindings):
		return ExitFindings
	}
	fmt.Fprintf(stderr, "heddle: %v\n", err)
	return ExitFailed
}

// Write prints the output of a command.
func Write(c *cobra.Command, text string) error {
	if _, err := io.WriteString(c.OutOrStdout(), text); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}
