package fabric

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// cut cuts a group of more than n nodes into blocks of neighboring switch ports.
func (g *leafGroup) cut(n int, ids []string) {
	if n == 0 || len(g.members) <= n {
		return
	}
	g.blocks = make([]string, len(g.members))
	width, places := map[string]int{}, map[int32][]place{}
	for _, r := range g.rails {
		width[r.Leaf.ID]++
	}
	for _, m := range g.members {
		for j := range m.links.ports {
			p := &m.links.ports[j]
			if at, ok := placeOf(p.switchPort.Value()); ok && g.own.count(p.leaf) > 0 {
				places[p.leaf] = append(places[p.leaf], at)
			}
		}
	}
	numbers := make(map[int32]*numbering, len(places))
	for leaf, list := range places {
		numbers[leaf] = numberingOf(list)
	}
	for i, m := range g.members {
		var blocks tally[string]
		for j := range m.links.ports {
			p := &m.links.ports[j]
			if at, ok := placeOf(p.switchPort.Value()); ok && places[p.leaf] != nil {
				blocks.add(strconv.Itoa(numbers[p.leaf].index(at)/(max(width[ids[p.leaf]], 1)*n)), 1)
			}
		}
		g.blocks[i] = blocks.most(strings.Compare)
	}
}

// place is a switch port by the numbers in its name, from the module to the part of a port that is split by a breakout
// cable: 12 of swp12, 17 and 2 of swp17s2, 1, 5 and 2 of Ethernet1/5/2, 5 and 2 of etp5b.
type place struct {
	parts []int
	// split is set if the name itself shows that the last number is a part.
	split bool
}

const (
	maxParts = 4
	// maxNumber keeps products of all parts small.
	maxNumber = 1 << 15
)

// placeOf reads a switch port's name. Invalid names are addresses, or have no number or too large ones.
func placeOf(name string) (at place, ok bool) {
	numbers := portNumbers.FindAllStringSubmatch(name, maxParts+1)
	if strings.Count(name, ":") > 1 || len(numbers) > maxParts {
		return at, false
	}
	for i, m := range numbers {
		number, err := strconv.Atoi(m[2])
		if err != nil || number > maxNumber {
			return at, false
		}
		at.parts, at.split = append(at.parts, number), i > 0 && m[1] != ""
		if part := m[3]; part != "" && i+1 < maxParts {
			at.parts, at.split = append(at.parts, int(part[0]-'a')+1), true
		}
	}
	return at, len(numbers) > 0
}

// portNumbers finds the numbers of a name, what shows that one is a part, and the letter of etp5b.
var portNumbers = regexp.MustCompile(`([:s]?)([0-9]+)([a-h]$)?`)

// numbering describes how one switch numbers the ports in use.
type numbering struct {
	// values are the numbers in use by their place in most names, sorted. The first fixed of them, such as modules,
	// count only if they differ.
	values [][]int
	fixed  int
}

func numberingOf(places []place) *numbering {
	var lengths tally[int]
	split := 0
	for _, p := range places {
		if lengths.add(len(p.parts), 1); p.split {
			split++
		}
	}
	n := &numbering{values: make([][]int, lengths.most(cmp.Compare[int]))}
	n.fixed = len(n.values) - 1
	if 2*split > len(places) {
		n.fixed--
	}
	for _, p := range places {
		for i, part := range n.align(p) {
			n.values[i] = append(n.values[i], part)
		}
	}
	for i := range n.values {
		slices.Sort(n.values[i])
		n.values[i] = slices.Compact(n.values[i])
	}
	return n
}

// align cuts a name with more numbers than most have: the part of a port, or modules.
func (n *numbering) align(p place) []int {
	if len(p.parts) > len(n.values) && p.split {
		p.parts = p.parts[:len(p.parts)-1]
	}
	return p.parts[max(len(p.parts)-len(n.values), 0):]
}

// index numbers a port from 0, in the order of the switch's ports: the parts of a port that are in use follow each
// other. Names count from 1, or from 0 if there is a 0.
func (n *numbering) index(p place) int {
	parts := slices.Concat(n.align(p), make([]int, len(n.values)))
	index, counted := 0, false
	for i, values := range n.values {
		if i < n.fixed && len(values) == 1 {
			continue
		}
		if at, _ := slices.BinarySearch(values, parts[i]); counted {
			index = index*len(values) + min(at, len(values)-1)
		} else {
			index = max(parts[i]-min(values[0], 1), 0)
		}
		counted = true
	}
	return index
}
