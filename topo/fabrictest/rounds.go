package fabrictest

import (
	"maps"
	"slices"
)

// pairRounds is the number of rounds between ports of the same leaf, each with another partner: each direction of a
// cable is tested with two.
const pairRounds = 4

// rounds returns the flows of all rounds. In a round no HCA has two flows, and between leaves no leaf. The rounds
// between leaves, each with another leaf and other ports, have seven flows for each of a leaf's uplinks: they find a
// slow one in more than 99 of 100 fabrics.
func rounds(ports []Port, uplinks int) (all [][]Flow) {
	leaves := map[[2]int32]map[string][]int{} // By rail and plane: these ports are tested with each other.
	var alone []Flow
	for i := range ports {
		p := &ports[i]
		rail := [2]int32{p.Rail, p.Plane}
		if leaves[rail] == nil {
			leaves[rail] = map[string][]int{}
		}
		leaves[rail][p.Leaf] = append(leaves[rail][p.Leaf], i)
		alone = append(alone, Flow{i, i})
	}
	rails := slices.SortedFunc(maps.Keys(leaves), func(a, b [2]int32) int { return slices.Compare(a[:], b[:]) })
	all = apart(ports, alone)
	for round := range pairRounds + 7*uplinks {
		var flows []Flow
		for _, rail := range rails {
			if round >= pairRounds {
				flows = append(flows, across(leaves[rail], round-pairRounds)...)
				continue
			}
			for _, leaf := range slices.Sorted(maps.Keys(leaves[rail])) {
				for _, pair := range circle(leaves[rail][leaf], round) {
					flows = append(flows, Flow{pair[0], pair[1]})
				}
			}
		}
		all = append(all, apart(ports, flows)...)
	}
	return all
}

// circle pairs members as in a tournament: in each of the first rounds with another partner, every second round in the
// other direction.
func circle[T any](members []T, round int) (pairs [][2]T) {
	n := len(members)
	if n < 2 {
		return nil
	}
	n += n % 2 // With an odd number one pauses.
	at := func(i int) int {
		if i == 0 {
			return 0
		}
		return 1 + (i-1+round)%(n-1)
	}
	for i := range n / 2 {
		a, b := at(i), at(n-1-i)
		if a >= len(members) || b >= len(members) {
			continue
		}
		if (a < b) != (round%2 == 0) {
			a, b = b, a
		}
		pairs = append(pairs, [2]T{members[a], members[b]})
	}
	return pairs
}

// across pairs leaves, and takes other ports of them in each round.
func across(leaves map[string][]int, round int) (flows []Flow) {
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(leaves)), func(leaf string) bool { return leaf == "" })
	for _, pair := range circle(names, round) {
		from, to := leaves[pair[0]], leaves[pair[1]]
		flows = append(flows, Flow{from[round%len(from)], to[(round/2+round/len(from))%len(to)]})
	}
	return flows
}

// apart splits flows into rounds in which no HCA has two.
func apart(ports []Port, flows []Flow) (all [][]Flow) {
	var busy []map[[2]string]bool
	for _, f := range flows {
		a := [2]string{ports[f.From].Node, ports[f.From].ID}
		b := [2]string{ports[f.To].Node, ports[f.To].ID}
		at := slices.IndexFunc(busy, func(m map[[2]string]bool) bool { return !m[a] && !m[b] })
		if at < 0 {
			at, busy, all = len(busy), append(busy, map[[2]string]bool{}), append(all, nil)
		}
		busy[at][a], busy[at][b], all[at] = true, true, append(all[at], f)
	}
	return all
}
