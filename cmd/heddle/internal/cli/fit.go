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
	// leastLast is the width that a long last column needs beside the others. A column of half this
	// width is short and stays there.
	leastLast = 40
)

// Fit makes the tables of a text as narrow as width where they are wider. The last
// column, which has the reasons, goes on in the next line, or stands below its row where
// little room is beside the others; then the longest cells lose their middle. A table is
// lines that begin with a header, as [Table] makes them; other lines stay.
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
	last := len(rows[0]) - 1
	widths := make([]int, last+1)
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	rest := width - sum(widths[:last]) - gap*last
	switch need := widths[last]; {
	case rest >= min(need, leastLast):
		return beside(rows, rest)
	case need <= leastLast/2:
		narrow(rows, widths[:last], width-need-gap*last)
		return Table(shortened(rows, widths))
	}
	narrow(rows, widths[:last], width-gap*(last-1))
	return below(rows, widths[:last], width)
}

// narrow takes what is more than width together from the columns in which the fewest
// cells lose something, of these from the widest.
func narrow(rows [][]string, widths []int, width int) {
	const least = 12
	for sum(widths) > width {
		best, fewest := -1, 0
		for i, w := range widths {
			losing := 0
			for _, row := range rows {
				if utf8.RuneCountInString(row[i]) >= w {
					losing++
				}
			}
			if w > least && (best < 0 || losing < fewest || losing == fewest && w > widths[best]) {
				best, fewest = i, losing
			}
		}
		if best < 0 {
			return // It is wide for all that can be left out.
		}
		widths[best]--
	}
}

// shortened returns the cells of the first columns, as wide as these.
func shortened(rows [][]string, widths []int) [][]string {
	out := make([][]string, len(rows))
	for at, row := range rows {
		for i, width := range widths {
			out[at] = append(out[at], shorten(row[i], width))
		}
	}
	return out
}

// beside wraps the cells of the last column.
func beside(rows [][]string, width int) string {
	var out [][]string
	last := len(rows[0]) - 1
	for _, row := range rows {
		for i, line := range Wrap(row[last], width) {
			cells := make([]string, len(row))
			if i == 0 {
				copy(cells, row)
			}
			cells[last] = line
			out = append(out, cells)
		}
	}
	return Table(out)
}

// below has the cells of the last column below their rows, and shortens the others.
func below(rows [][]string, widths []int, width int) string {
	last := len(widths)
	var b strings.Builder
	at := 0
	for line := range strings.Lines(Table(shortened(rows, widths))) {
		b.WriteString(line)
		for _, more := range Wrap(rows[at][last], width-indent) {
			if more != "" {
				b.WriteString(strings.Repeat(" ", indent) + more + "\n")
			}
		}
		at++
	}
	return b.String()
}

func sum(list []int) (n int) {
	for _, v := range list {
		n += v
	}
	return n
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
