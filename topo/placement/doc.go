// Package placement assigns a node to every pod of a gang on the topology tree
// of a cluster, or explains why it does not fit.
//
// It owns the tree of groups in the form that plans need, the definition of a
// good plan, and the order of ranks. It reads no API, file or clock, keeps no
// state between plans but memory, and knows no resources: the caller counts how
// many pods of a class fit on a node now.
//
// # What a good plan is
//
// Tiers count from below: 0 is a node, 1 a group of nodes, then groups of
// groups, the root with all groups, and last nodes in no group. A plan is
// optimal in this sense:
//
//  1. The gang is in a group of the lowest tier in which one holds it, inside
//     the required kind; a group of the preferred kind comes before anything
//     tighter.
//  2. If that is a group of groups, the gang spans as few of its children as
//     possible. Of the groups of the tier it is in one where the fewest will
//     do; of these in one with the least room, counted in pods of the gang; of
//     these in one with the least room around it, level by level; of these in
//     the first of the tree.
//  3. Of the sets of so few children it takes the one that leaves the largest
//     free domains whole: with the largest of each set first, its sizes come
//     first in lexicographic order.
//  4. All of these children are filled but one, the smallest. What is left for
//     that one is placed in it as a gang of its own, by these rules. In a
//     lowest group the same holds for its nodes; of nodes that take as many
//     pods the one with the least free comes first.
//
// So spines are decided before leaves, since traffic across spines costs most.
//
// Placed members come before best fit: the rest goes into the lowest group
// around all of them that holds it, first into its children with members. If
// members are in several groups of the required kind, the rest goes into these.
//
// Nodes in no group are excluded where a kind is required, and take what all
// groups together do not hold: one node that holds the whole gang, else as few
// as possible. Nodes that stand beside groups in a group of groups are a lowest
// group.
//
// # Slices
//
// A block of Slice / GPUs consecutive ranks goes into one lowest group; the
// last block may be shorter, and fits into what blocks leave over. Ranks are
// consecutive in every group, at every level, if the first rank counts as the
// successor of the last. A block with placed members goes where these are,
// whatever that costs.
//
// # Unlike pods
//
// Tasks for which every node has the same room, or that slices join, are
// planned as one. The tasks with most of the gang's GPUs are the primary ones
// and follow the rules above; the others are secondary and go beside them. No
// pod goes where it does not fit; one secondary pod and the primary ones reach
// the lowest tier that holds both; with more secondary pods a plan may be
// missed that exists.
//
// # Cost
//
// A plan visits every node and group a few times, and allocates only its
// result. A gang that does not fit is planned once more for each bit of its
// size, to find out how much of it would.
package placement
