package cli

import (
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// The colors of a terminal (ECMA-48), and how text ends them.
const (
	bold   = "\x1b[1m"
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	plain  = "\x1b[0m"
)

// IsTerminal reports whether a writer is a terminal.
func IsTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// columnsOf returns how many columns a terminal has, or $COLUMNS; 0 for another writer.
func columnsOf(w io.Writer) int {
	if columns, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil {
		return columns
	}
	file, ok := w.(*os.File)
	if !ok {
		return 0
	}
	columns, _, err := term.GetSize(int(file.Fd()))
	switch {
	case err == nil && columns > 0:
		return columns
	case IsTerminal(w):
		return Width // A serial console does not know.
	}
	return 0
}

// colored reports whether the output of a command is to have colors
// (https://no-color.org).
func colored(c *cobra.Command) bool {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && IsTerminal(c.OutOrStdout())
}

// Bold is text that stands out on a terminal.
func Bold(c *cobra.Command, text string) string {
	if !colored(c) {
		return text
	}
	return bold + text + plain
}

// colorOf has the cells of tables that are good, to be watched, or wrong.
func colorOf(cell string) string {
	switch cell {
	case "Ready", "Running", "Succeeded", "placed":
		return green
	case "Degraded", "Queued", "Starting", "cordoned", "unseen", "rejected":
		return yellow
	case "NotReady", "Unknown", "miscabled", "dead", "missing", "duplicate", "path", "ignored", "PROBLEMS":
		return red
	}
	return ""
}

// paint colors a table: its header, and the cells that [colorOf] knows. Cells are two
// spaces apart, as [Table] writes them.
func paint(text string) string {
	header := regexp.MustCompile(`^[A-Z][A-Z ]*[A-Z]$`)
	cells := regexp.MustCompile(`[^ ]+(?: [^ ]+)*`)
	var b strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if header.MatchString(line) {
			b.WriteString(bold + line + plain + "\n")
			continue
		}
		b.WriteString(cells.ReplaceAllStringFunc(line, func(cell string) string {
			if color := colorOf(cell); color != "" {
				return color + cell + plain
			}
			return cell
		}) + "\n")
	}
	return b.String()
}

// Show prints a table, or several. On a terminal they are in color.
func Show(c *cobra.Command, tables string) error {
	if colored(c) {
		tables = paint(tables)
	}
	return Write(c, tables)
}
