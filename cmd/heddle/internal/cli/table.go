package cli

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Table renders rows as columns, left aligned, with gap spaces between, and no
// blanks at the ends of lines. What does not print becomes "?": cells hold
// names that other machines made, and a terminal obeys what it is shown.
func Table(rows [][]string, gap int) string {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b, line strings.Builder
	for _, row := range rows {
		line.Reset()
		for i, cell := range row {
			line.WriteString(Printable(cell))
			line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+gap))
		}
		b.WriteString(strings.TrimRight(line.String(), " "))
		b.WriteByte('\n')
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

// Count is a number with its word: "1 problem", "2 problems".
func Count(n int, word string) string {
	if n != 1 {
		word += "s"
	}
	return strconv.Itoa(n) + " " + word
}
