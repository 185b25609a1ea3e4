package cli

import (
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Width bounds the columns of tables for people, unless the terminal is wider.
const Width = 120

const (
	gap    = 2 // Spaces between two columns.
	indent = 4 // Before what stands below a row.
	// least is the width that a column keeps, and that a last column has which stays beside the others.
	least = 20
)

// Fit makes the tables of a text as narrow as width where they are wider. A long last
// column, which has the reasons, stands below its row; then the longest cells lose their
// middle. A table is lines that begin with a header, as [Table] makes them; other lines stay.
func Fit(text string, width int) string {
	parts := strings.Split(text, "\n\n")
	for i, part := range parts {
		end := ""
		if strings.HasSuffix(part, "\n") {
			end = "\n"
		}
		lines := strings.Split(strings.TrimSuffix(part, "\n"), "\n")
		wide := slices.ContainsFunc(lines, func(l string) bool { return utf8.RuneCountInString(l) > width })
		if wide && isHeader(lines[0]) {
			parts[i] = strings.TrimSuffix(fit(cellsOf(lines), width), "\n") + end
		}
	}
	return strings.Join(parts, "\n\n")
}

func isHeader(line string) bool {
	return strings.Contains(line, "  ") && line == strings.ToUpper(line) && !strings.HasPrefix(line, " ")
}

// cellsOf takes a table apart at the beginnings of its header's cells.
func cellsOf(lines []string) [][]string {
	var starts []int
	for _, at := range regexp.MustCompile(`[^ ]+(?: [^ ]+)*`).FindAllStringIndex(lines[0], -1) {
		starts = append(starts, utf8.RuneCountInString(lines[0][:at[0]]))
	}
	var rows [][]string
	for _, line := range lines {
		runes := []rune(line)
		var row []string
		for i, start := range starts {
			end := len(runes)
			if i+1 < len(starts) {
				end = min(end, starts[i+1])
			}
			row = append(row, strings.TrimRight(string(runes[min(start, end):end]), " "))
		}
		rows = append(rows, row)
	}
	return rows
}

func fit(rows [][]string, width int) string {
	columns := len(rows[0])
	widths, total := make([]int, columns), 0
	for i := range widths {
		for _, row := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	if widths[columns-1] > least {
		columns--
	}
	for _, w := range widths[:columns] {
		total += w + gap
	}
	for total -= gap; total > width; total-- {
		longest := slices.Index(widths[:columns], slices.Max(widths[:columns]))
		if widths[longest] <= least {
			break // It is wide for all that can be left out.
		}
		widths[longest]--
	}
	short := make([][]string, len(rows))
	for at, row := range rows {
		for i, w := range widths[:columns] {
			short[at] = append(short[at], shorten(row[i], w))
		}
	}
	var b strings.Builder
	at := 0
	for line := range strings.Lines(Table(short)) {
		b.WriteString(line)
		for _, cell := range rows[at][columns:] {
			for _, more := range Wrap(cell, width-indent) {
				b.WriteString(strings.Repeat(" ", indent) + more + "\n")
			}
		}
		at++
	}
	return strings.ReplaceAll(b.String(), strings.Repeat(" ", indent)+"\n", "")
}

// shorten leaves the middle of a cell out: names differ at their beginnings and at their
// ends.
func shorten(cell string, width int) string {
	runes := []rune(cell)
	if len(runes) <= width {
		return cell
	}
	head := width / 2
	return string(runes[:head]) + "…" + string(runes[len(runes)-(width-head-1):])
}

// Wrap breaks a text between words. A longer word has a separate line.
func Wrap(text string, width int) []string {
	lines := []string{""}
	for word := range strings.FieldsSeq(text) {
		at := len(lines) - 1
		switch {
		case lines[at] == "":
			lines[at] = word
		case utf8.RuneCountInString(lines[at])+1+utf8.RuneCountInString(word) <= width:
			lines[at] += " " + word
		default:
			lines = append(lines, word)
		}
	}
	return lines
}
