package mxcd

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// maxGPUs bounds the GPUs read from one answer.
const maxGPUs = 256

// errPartial means that an answer has GPUs, and lines that could not be read.
var errPartial = errors.New("lines could not be read")

// listed is a GPU in the answer of mx-smi -L.
type listed struct {
	index         int
	address, name string
	// uuid is the driver's, empty if it is not printed.
	uuid string
	// state is the text between the address and the UUID: Available, or
	// Not Available(MetaX Sysfs File Unaccessible).
	state string
}

// parseList reads the answer of mx-smi -L, of version 2.1 to 2.3:
//
//	GPU#0    MXC500      0000:08:00.0   Available (UUID: GPU-e702f06b-…)
//
// The error names the malformed lines; the result holds the valid ones.
func parseList(text string) ([]listed, error) {
	var all []listed
	var errs []error
	for line := range strings.Lines(text) {
		number, ok := strings.CutPrefix(strings.TrimSpace(line), "GPU#")
		if !ok {
			continue
		}
		if len(all)+len(errs) == maxGPUs {
			return nil, fmt.Errorf("more than %d GPUs", maxGPUs)
		}
		g, err := parseListed(number)
		if err != nil {
			errs = append(errs, fmt.Errorf("line %s: %w", excerpt(line), err))
			continue
		}
		all = append(all, g)
	}
	if len(all)+len(errs) == 0 {
		return nil, fmt.Errorf("no GPU in %s", excerpt(text))
	}
	return all, partial(len(all), errs)
}

// partial returns the errors of an answer; they are an errPartial if it has good lines.
func partial(good int, errs []error) error {
	if err := errors.Join(errs...); err == nil || good == 0 {
		return err
	}
	return fmt.Errorf("%w: %w", errPartial, errors.Join(errs...))
}

func parseListed(line string) (g listed, err error) {
	fields := strings.Fields(line)
	if len(fields) < 4 {
		return g, errors.New("it has no index, name, address and state")
	}
	if g.index, err = strconv.Atoi(fields[0]); err != nil || g.index < 0 {
		return g, errors.New("it has no index")
	}
	if g.address = strings.ToLower(fields[2]); !isAddress(g.address) {
		return g, errors.New("it has no PCI address")
	}
	g.name = wellknown.Clip(fields[1])
	rest := strings.Join(fields[3:], " ")
	state, uuid, _ := strings.Cut(rest, "(UUID: ")
	g.state = wellknown.Clip(strings.TrimSpace(state))
	g.uuid = wellknown.Clip(strings.TrimSuffix(uuid, ")"))
	return g, nil
}

func isAddress(text string) bool {
	_, err := machine.ParseAddress(text)
	return err == nil
}

// table is the answer of mx-smi without arguments.
type table struct {
	// driver and maca are versions; empty if they are not printed.
	driver, maca string
	// memoryMiB is the total by PCI address.
	memoryMiB map[string]int64
}

// parseTable reads the answer of mx-smi without arguments. Of a GPU's two lines the
// first has the PCI address, the second the memory; their other columns differ
// between versions:
//
//	| MX-SMI 2.2.9            Kernel Mode Driver Version: 3.4.4            |
//	| MACA Version: 3.3.0.15  BIOS Version: 1.30.0.0                       |
//	| 0  MetaX C500 | 0   Off | 0000:0e:00.0    | 0%          Disabled |
//	| 57W / 350W    | 35C  P0 | 826/65536 MiB   | Available            |
func parseTable(text string) (table, error) {
	t := table{memoryMiB: map[string]int64{}}
	at := ""
	var errs []error
	for line := range strings.Lines(text) {
		t.driver = version(t.driver, line, "Kernel Mode Driver Version:")
		t.maca = version(t.maca, line, "MACA Version:")
		fields := strings.Fields(line)
		for i, field := range fields {
			field = strings.ToLower(field)
			_, total, amount := strings.Cut(field, "/")
			switch {
			case isAddress(field):
				at = field
			case amount && at != "" && i+1 < len(fields) && fields[i+1] == "MiB" && len(t.memoryMiB) < maxGPUs:
				mib, err := strconv.ParseInt(total, 10, 32)
				if err == nil && mib > 0 {
					t.memoryMiB[at] = mib
				} else if len(errs) < maxGPUs {
					errs = append(errs, fmt.Errorf("memory of %s in line %s", at, excerpt(line)))
				}
				at = ""
			}
		}
	}
	if len(t.memoryMiB)+len(errs) == 0 {
		return t, fmt.Errorf("no GPU with its memory in %s", excerpt(text))
	}
	return t, partial(len(t.memoryMiB), errs)
}

// version returns the word after a name, unless it is known or none.
func version(known, line, name string) string {
	_, rest, ok := strings.Cut(line, name)
	word, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	if known != "" || !ok || !strings.ContainsAny(word, "0123456789") {
		return known
	}
	return wellknown.Clip(word)
}

// parseTopology reads the answer of mx-smi topo -m, or -n: by the index of a GPU, which
// others it reaches by MetaXLink.
//
//	        GPU0    GPU1    NIC0   Node Affinity  CPU Affinity
//	GPU0    X       MX      PIX    0              0-31,64-95
//	GPU1    MX      X       NODE   0              0-31,64-95
func parseTopology(text string) (map[int][]int, error) {
	var columns []int
	var errs []error
	links := map[int][]int{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		row, isRow := numbered(fields)
		if !isRow {
			continue
		}
		if columns == nil { // The first line of GPUs is the head.
			for ; isRow && len(columns) < maxGPUs; row, isRow = numbered(fields) {
				columns, fields = append(columns, row), fields[1:]
			}
			continue
		}
		peers, err := peersOf(fields[1:], columns)
		if err != nil {
			errs = append(errs, fmt.Errorf("row %s: %w", excerpt(line), err))
		}
		links[row] = peers
	}
	if len(columns) == 0 || len(links) != len(columns) {
		errs = append(errs,
			fmt.Errorf("a matrix of %d columns and %d rows of GPUs in %s", len(columns), len(links), excerpt(text)))
	}
	return links, partial(len(links), errs)
}

// peersOf returns the columns with a MetaXLink in a row; a word that is not known hides no other.
func peersOf(row []string, columns []int) (peers []int, err error) {
	peers = []int{}
	if len(row) < len(columns) {
		err = errors.New("it is cut off")
	}
	for i, word := range row[:min(len(row), len(columns))] {
		switch word {
		case "X", "SYS", "NODE", "PHB", "PXB", "PIX", "ETH", "NA":
		case Link:
			peers = append(peers, columns[i])
		default:
			err = fmt.Errorf("connection %s is not known", excerpt(word))
		}
	}
	return peers, err
}

// numbered is N of a first word GPUN.
func numbered(fields []string) (int, bool) {
	if len(fields) == 0 {
		return 0, false
	}
	digits, ok := strings.CutPrefix(fields[0], "GPU")
	n, err := strconv.Atoi(digits)
	return n, ok && err == nil && n >= 0 && n < maxGPUs
}

// excerpt returns the beginning of a text, for an error.
func excerpt(text string) string { return fmt.Sprintf("%.80q", strings.TrimSpace(text)) }
