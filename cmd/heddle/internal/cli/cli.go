// Package cli holds what heddle's commands share: exit codes, usage, -o with its
// formats, and tables. It decides nothing about machines.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/duration"
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

// Read reads a file; - is the standard input.
func Read(c *cobra.Command, file string) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(c.InOrStdin())
	}
	return os.ReadFile(file)
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

// Age returns the time since then as kubectl shows it, such as 3d; empty for the zero time.
func Age(then time.Time) string {
	if then.IsZero() {
		return ""
	}
	return duration.HumanDuration(time.Since(then))
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

// remedy returns the recommended action for an error that any command can have; empty for those that
// have one of their own, or none.
func remedy(err error) string {
	dial, isNetwork := errors.AsType[*net.OpError](err)
	switch {
	case apierrors.IsUnauthorized(err):
		return "Log in again: the API server does not accept the credentials of the kubeconfig."
	case apierrors.IsForbidden(err):
		return "Ask an administrator for this right; kubectl auth can-i --list shows those that you have."
	case apierrors.IsNotFound(err):
		return "Check the name, and the cluster: kubectl config current-context."
	case isNetwork && dial.Op == "dial":
		return "Check the address, which --server, --kubeconfig and --context decide, and that it can be reached from here."
	case errors.Is(err, fs.ErrPermission):
		return "Run it as a user who may read that, such as root."
	case errors.Is(err, fs.ErrNotExist):
		return "Check the path."
	case errors.Is(err, context.DeadlineExceeded):
		return "Try again; if it goes on, look at the server's own log."
	}
	return ""
}
