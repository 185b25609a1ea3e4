package gpu

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// AllChannels are all IMEX channels that the node has.
const AllChannels = "all"

// maxChannel is the highest number of a channel: it is the minor of a device node, which
// has 20 bits.
const maxChannel = 1<<20 - 1

// maxQuoted is how much of a word an error repeats, in bytes.
const maxQuoted = 32

// ParseChannels reads a comma list of IMEX channels.
func ParseChannels(list string) ([]int, error) {
	var numbers []int
	for word := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 0 || n > maxChannel || strconv.Itoa(n) != word {
			return nil, fmt.Errorf("invalid IMEX channel %q: want numbers such as 0", wellknown.ClipTo(word, maxQuoted))
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}
