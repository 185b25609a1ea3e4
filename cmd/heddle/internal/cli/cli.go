// Package cli holds what heddle's subcommands share: flags with a usage text,
// the two ways to fail, and tables for a terminal. It decides nothing about
// machines.
package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// Exit codes of heddle.
const (
	ExitOK = 0
	// ExitFailed means that something is wrong with what was looked at, or
	// that it could not be looked at.
	ExitFailed = 1
	// ExitUsage means that the command line makes no sense.
	ExitUsage = 2
)

// ErrFindings means that a command did its work, printed it, and what it found
// is bad: exit 1 without another word.
var ErrFindings = errors.New("there are findings")

// UsageError is a command line that makes no sense.
type UsageError struct {
	// Command is the command to ask for help: "inspect".
	Command string
	Err     error
}

func (e *UsageError) Error() string { return e.Err.Error() }

// Unwrap returns the fault.
func (e *UsageError) Unwrap() error { return e.Err }

// Usagef makes a UsageError.
func Usagef(command, format string, args ...any) error {
	return &UsageError{Command: command, Err: fmt.Errorf(format, args...)}
}

// Exit turns the outcome of a command into its exit code, and says on stderr
// what went wrong.
func Exit(err error, stderr io.Writer) int {
	var usage *UsageError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return ExitOK
	case errors.Is(err, ErrFindings):
		return ExitFailed
	case errors.As(err, &usage):
		hint := strings.TrimSpace("heddle help " + usage.Command)
		fmt.Fprintf(stderr, "heddle: %v\nTry: %s\n", err, hint)
		return ExitUsage
	}
	fmt.Fprintf(stderr, "heddle: %v\n", err)
	return ExitFailed
}

// FlagSet is a command's flags and its help text.
type FlagSet struct {
	*flag.FlagSet
	usage     string
	stdout    io.Writer
	arguments []string
}

// Flags makes the flags of a command. The first line of usage says in a
// sentence what it does.
func Flags(command, usage string, stdout io.Writer) *FlagSet {
	set := &FlagSet{FlagSet: flag.NewFlagSet(command, flag.ContinueOnError), usage: usage, stdout: stdout}
	set.SetOutput(io.Discard)
	return set
}

// Read parses args, with flags before, between or after what is no flag. It
// takes no more than most arguments that are no flags, prints the help text if
// asked to, and makes a fault a UsageError.
func (s *FlagSet) Read(args []string, most int) error {
	for rest := args; ; {
		err := s.Parse(rest)
		if errors.Is(err, flag.ErrHelp) {
			s.help()
			return err
		}
		if err != nil {
			return &UsageError{Command: s.Name(), Err: fmt.Errorf("%s: %w", s.Name(), err)}
		}
		if s.NArg() == 0 {
			break
		}
		s.arguments = append(s.arguments, s.Arg(0))
		rest = s.Args()[1:]
	}
	if len(s.arguments) > most {
		return Usagef(s.Name(), "%s: unexpected argument %q", s.Name(), s.arguments[most])
	}
	return nil
}

// Arguments are those that are no flags, after Read.
func (s *FlagSet) Arguments() []string { return s.arguments }

// Given tells whether a flag was on the command line.
func (s *FlagSet) Given(name string) bool {
	given := false
	s.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	return given
}

// help prints the text and the flags, spelled with two dashes as in every text
// of ours.
func (s *FlagSet) help() {
	var b strings.Builder
	b.WriteString(s.usage + "\n")
	head := "\nFlags:\n"
	s.VisitAll(func(f *flag.Flag) {
		argument, text := flag.UnquoteUsage(f)
		if f.DefValue != "" && f.DefValue != "false" {
			text += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(&b, "%s  %s\n    \t%s\n", head, strings.TrimSpace("--"+f.Name+" "+argument), text)
		head = ""
	})
	fmt.Fprint(s.stdout, b.String())
}
