// Package placement finds a place for every pod of a gang on a map of the
// cluster, or tells in people's words why there is none.
//
// It owns the tree of groups as plans need it, what a good place is, and the
// order of ranks. It reads no API, file or clock, keeps no state between plans
// but memory, and knows no resources: the caller says how many pods of a kind
// fit on a node now.
//
// # What a good place is
//
// Tiers count from below: 0 is a node, 1 a group of nodes, then groups of
// groups, the whole of all groups, and last nodes in no group. A plan is
// optimal in this sense:
//
//  1. The gang is in a group of the lowest tier in which one holds it. A
//     required kind must be around it; a preferred kind, where a group of that
//     kind holds the gang, is looked at before anything tighter.
//  2. If that is a group of groups, none of these holds it, so it spans
//     several: as few as possible. Of the groups of the tier it is in one
//     where the fewest will do; of these in one with the least room, counted in
//     pods of the gang; of these in one with the least room around it, level by
//     level; of these in the first of the map.
//  3. Of the sets of so few groups it takes the one that leaves the largest holes
//     whole: with the largest of each set first, its sizes come first in
//     lexicographic order. Equal groups are taken in the order of the map.
//  4. All of these groups are filled but one, the smallest. What is left for
//     that one is placed in it as a gang of its own, by these rules. In a
//     lowest group the same holds for its nodes; of nodes that take as many
//     pods the one with the least free comes first.
//
// So the number of groups is minimal at the level below the group reached, and
// below that given what is decided above: spines before leaves, since what
// crosses spines costs most.
//
// Members that have a node come before best fit: the rest goes into the lowest
// group around all of them that holds it, first where members are. If they are
// in several groups of the required kind, the rest goes into these.
//
// Nodes in no group are near to nothing. They are refused where a kind is
// required, and get what all groups together do not hold: one node that holds
// the whole gang, else as few as possible. Nodes that stand beside groups, in a
// group of groups, are a lowest group.
//
// # Slices
//
// A block of Slice / GPUs consecutive ranks goes into one lowest group, so
// groups are measured in blocks first, pods second; the last block may be
// shorter, and can lie in what blocks leave over. Ranks are consecutive in
// every group, at every level, if one counts the first rank as the successor of
// the last: the ranks begin behind the group with the shorter block. A block of
// which members have a node goes where these are, whatever that costs.
//
// # Pods that are not alike
//
// Tasks for which every node has the same room, or that slices join, are
// planned as one. Of the others those lead that have most of the gang's GPUs,
// by the rules above; the rest are guests beside them. See mixed.go for what is
// promised there: nothing is ever put where it does not fit; one guest and
// leading pods reach the lowest tier that both do; with more guests a place may
// be missed that exists.
//
// # Cost
//
// A plan looks at every node and group a few times, and allocates only its
// answer. A gang that does not fit is planned once more for each bit of its
// size, to find out how much of it would.
package placement
