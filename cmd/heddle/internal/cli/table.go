package cli

import (
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
)

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

// Count is a number with its noun: "1 problem", "2 problems".
func Count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return strconv.Itoa(n) + " " + noun
}
