package fabric

import (
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
	width := map[string]int{}
	for _, r := range g.rails {
		width[r.Leaf.ID]++
	}
	numbers := g.numberings()
	for i, m := range g.members {
		var blocks tally[string]
		for j := range m.links.ports {
			p := &m.links.ports[j]
			if at, ok := placeOf(p.switchPort.Value()); ok && numbers[p.leaf] != nil {
				ports := max(width[ids[p.leaf]], 1) * n
				blocks.add(strconv.Itoa(numbers[p.leaf].index(at)/ports), 1)
			}
		}
		g.blocks[i] = blocks.most(strings.Compare)
	}
}

// numberings returns how the group's own leaves number their ports, learnt from the members.
func (g *leafGroup) numberings() map[int32]*numbering {
	places := map[int32][]place{}
	for _, m := range g.members {
		for j := range m.links.ports {
			p := &m.links.ports[j]
			if at, ok := placeOf(p.switchPort.Value()); ok && p.leaf != 0 && g.own.count(p.leaf) > 0 {
				places[p.leaf] = append(places[p.leaf], at)
			}
		}
	}
	out := make(map[int32]*numbering, len(places))
	for l, list := range places {
		out[l] = numberingOf(list)
	}
	return out
}

// place is a switch port by the numbers in its name, from the module to the part
// of a port that is split by a breakout cable: 12 of swp12, 17 and 2 of swp17s2, 1,
// 5 and 2 of Ethernet1/5/2, 5 and 2 of etp5b.
type place struct {
	parts [maxParts]int
	n     int
	// split is set if the name itself shows that the last number is a part.
	split bool
}

const (
	maxParts = 4
	// maxNumber keeps products of all parts small.
	maxNumber = 1 << 15
)

// placeOf reads a switch port's name. Invalid names are addresses, or have
// no number or too large ones.
func placeOf(name string) (at place, ok bool) {
	numbers := portNumbers.FindAllStringSubmatch(name, maxParts+1)
	if strings.Count(name, ":") > 1 || len(numbers) == 0 || len(numbers) > maxParts {
		return place{}, false
	}
	for _, m := range numbers {
		number, err := strconv.Atoi(m[2])
		if err != nil || number > maxNumber {
			return place{}, false
		}
		at.split = at.n > 0 && m[1] != ""
		at.add(number)
	}
	if part := numbers[len(numbers)-1][3]; part != "" && at.n < maxParts {
		at.split = true
		at.add(int(part[0]-'a') + 1)
	}
	return at, true
}

// portNumbers finds the numbers of a name, what shows that one is a part, and the letter of etp5b.
var portNumbers = regexp.MustCompile(`([:s]?)([0-9]+)([a-h]$)?`)

func (p *place) add(number int) {
	p.parts[p.n] = number
	p.n++
}

// numbering describes how one switch numbers the ports in use.
type numbering struct {
	// length is the count of numbers in most names. The first fixed of them, such as modules, count
	// only if they differ.
	length, fixed int
	values        [maxParts][]int // In use, sorted.
}

func numberingOf(places []place) *numbering {
	n := numbering{}
	var lengths [maxParts + 1]int
	split := 0
	for _, p := range places {
		lengths[p.n]++
		if p.split {
			split++
		}
	}
	for length, count := range lengths {
		if count > lengths[n.length] {
			n.length = length
		}
	}
	n.fixed = n.length - 1
	if 2*split > len(places) {
		n.fixed--
	}
	for i := range n.length {
		for _, p := range places {
			if p = n.align(p); i < p.n {
				n.values[i] = append(n.values[i], p.parts[i])
			}
		}
		slices.Sort(n.values[i])
		n.values[i] = slices.Compact(n.values[i])
	}
	return &n
}

// align cuts a name with more numbers than most have: the part of a port, or modules.
func (n *numbering) align(p place) place {
	if p.n > n.length && p.split {
		p.n--
	}
	if more := p.n - n.length; more > 0 {
		copy(p.parts[:], p.parts[more:])
		p.n = n.length
	}
	return p
}

// index numbers a port from 0, in the order of the switch's ports: the parts of a
// port that are in use follow each other. Names count from 1, or from 0 if there is a 0.
func (n *numbering) index(p place) int {
	p = n.align(p)
	index, counted := 0, false
	for i, values := range n.values[:n.length] {
		if len(values) == 0 || i < n.fixed && len(values) == 1 {
			continue
		}
		if at, _ := slices.BinarySearch(values, p.parts[i]); counted {
			index = index*len(values) + min(at, len(values)-1)
		} else {
			index = max(p.parts[i]-min(values[0], 1), 0)
		}
		counted = true
	}
	return index
}
