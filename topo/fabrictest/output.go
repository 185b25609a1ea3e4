package fabrictest

import (
	"fmt"
	"strconv"
	"strings"
)

// ParsePerftest reads the output of a program of perftest: the average bandwidth in Gb/s of one that ran with
// --report_gbits, or the typical latency in microseconds. Of several sizes the last one counts.
func ParsePerftest(output string) (float64, error) {
	column, value := -1, ""
	for line := range strings.Lines(output) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if fields[0] == "#bytes" {
			switch {
			case strings.Contains(line, "BW average[Gb/sec]"):
				column = 3
			case strings.Contains(line, "t_typical[usec]"):
				column = 4
			default:
				return 0, fmt.Errorf("unsupported columns of perftest: %s", strings.TrimSpace(line))
			}
		} else if _, err := strconv.ParseUint(fields[0], 10, 64); err == nil && column >= 0 && len(fields) > column {
			value = fields[column]
		}
	}
	if value == "" {
		return 0, fmt.Errorf("the output of perftest has no results: %s", last(output))
	}
	return number(value)
}

// number reads a value that is not negative and not infinite.
func number(text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || v < 0 || v != v || v > 1e12 {
		return 0, fmt.Errorf("invalid number %q", text)
	}
	return v, nil
}

// last returns the last line that is not empty.
func last(output string) string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

// Size is the result of a collective for one size.
type Size struct {
	Bytes int64
	// Busbw is the bus bandwidth in GB/s, the better of out of place and in place.
	Busbw float64
}

// ParseCollective reads the output of a program of nccl-tests, such as all_reduce_perf: a line for each size. Lines of
// other programs between them are skipped. Wrong values are an error.
func ParseCollective(output string) (sizes []Size, err error) {
	// What a line has after size, count and type: all_reduce_perf the operation and the root, sendrecv_perf too.
	const before, columns = 5, 4
	for line := range strings.Lines(output) {
		fields := strings.Fields(line)
		if len(fields) < before+columns {
			continue
		}
		bytes, err := strconv.ParseInt(fields[0], 10, 64)
		count, countErr := strconv.ParseInt(fields[1], 10, 64)
		if err != nil || countErr != nil || bytes < 0 || count < 0 {
			continue
		}
		s := Size{Bytes: bytes}
		for at := before; at+columns <= len(fields); at += columns {
			busbw, err := number(fields[at+2])
			if err != nil {
				return nil, fmt.Errorf("size %d: busbw: %w", bytes, err)
			}
			s.Busbw = max(s.Busbw, busbw)
			if wrong, err := strconv.ParseInt(fields[at+3], 10, 64); err == nil && wrong > 0 { // Else N/A.
				return nil, fmt.Errorf("%d wrong values at size %d", wrong, bytes)
			}
		}
		sizes = append(sizes, s)
	}
	if len(sizes) == 0 {
		return nil, fmt.Errorf("the output has no results of nccl-tests: %s", last(output))
	}
	return sizes, nil
}
