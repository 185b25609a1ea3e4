// Package fabric makes one tree of groups from the reports of many nodes, and finds the mis-cabled ports.
//
// It owns the definition of a group, the groups' names, the status of every element and the bytes that GET /node_group
// answers. It reads no API, file or clock, and never fails on the content of a report: a false report moves its own
// node, and is bounded.
//
// # Which nodes belong together
//
// A node has ports; a port of role fabric ends in a leaf switch. Connected components would merge two groups for one
// mis-cabled port, so nodes are grouped by how much of their leaf sets they share, in four votes:
//
//  1. Leaves are siblings if more than half of the cables of either come from nodes that are on the other as well
//     (a node counts as often as it has cables to both), or if that is so of two cables, and one in eight, of the
//     nodes with equal numbers of cables that neither leaf has four times as many of as the other. A leaf's anchor is
//     the least ID among it and its siblings, of a leaf with one or two cables the anchor of its fullest sibling.
//  2. A node votes for the anchor that most of its cables lead to, or the least with three quarters as many.
//  3. A leaf's home is the choice of most of its nodes, weighted by cables. If another choice has more than half as
//     many, the leaf is between groups and has no voice in vote 4, as long as the node has a cable to any other. Then
//     it stands for the group of most of its decided nodes.
//  4. A node's group is the home that most of its cables lead to.
//
// At a leaf with three or more cables of nodes with GPUs only those count in votes 1 and 3: nodes without GPUs go where
// their cables lead, and make no leaf foreign.
//
// Ties in vote 4 go to the group with more of the node's cables on a rail that is usual for their leaf (at least half
// as many of its cables start from it as from any other), then to the group whose members carry the name that the node
// carries, then to the group with fewer cables on those leaves (a wrong cable is one too many), then, as all ties, to
// the least ID. A port that is down counts if the report still knows its switch. The outcome depends on the reports and
// labels alone.
//
// The same votes group the leaf groups by the spines behind their uplinks. A switch on which a group expects nodes with
// GPUs is not a spine.
//
// # Which cables are wrong
//
// Nodes are compared with nodes of their shape: equal products of accelerators, and ports on the same rails and planes;
// or, whatever their product, with more nodes with GPUs that most of their cables agree with. A node without some of
// the rails of a shape counts as one that lost HCAs if it lost one, or less than half of them, and if all of these are
// before its last (rails are numbered without gaps) or few enough nodes of its group and of the fleet are like it for
// loss to explain them. A rail that most such nodes of the group lack was never there. Nothing is expected of nodes
// without GPUs, unless eight are cabled alike.
//
// A leaf is foreign to a group if another group has at least twice as many cables on it. For every shape, rail and
// plane a group expects the leaf on which most of the members' cables end for which the rail is usual. Three members,
// and one in twelve, with a rail on one leaf are a pattern: all of them are right. Any other port on a foreign leaf is
// mis-cabled; so is one on another leaf than the expected, if three members have the shape, it is wired by rail in the
// group (three quarters of its cables are as expected), and not as many have it so. Of two members that disagree the
// one is wrong whose leaf has as many other rails of both as any. A node's only cable is right unless it is where
// another rail belongs. A wrong cable belongs where those have it that share the most other cables with it. No finding
// has a node between two groups: tied without a name to decide, with half of its cables in one other group or where
// hardly another node is. If one node in twenty is tied, or has two cables in another group, two cables from rails that
// are usual for their leaves are by plan.
//
// # Names
//
// A group's name is its kind, a hyphen and a stable ID. A group from a file or a cluster manager has the name given
// there, an NVLink domain its identity, any group found by its switches the description of its anchor, or its ID if the
// description is unknown or remembered by nobody. Where several groups of a level have switches with one description,
// each name gets a suffix from the anchor's ID, except the name of a group that had it alone before. The anchor changes
// if the anchor dies or is replaced; so a group keeps the name that most of its members carry as a label, if these are
// more than half and no other group has more members with it. A name changes only if the anchor changes while fewer
// than half of the members carry the old name, if a group splits (then the larger part keeps it), or if the name was
// the anchor's ID and its description has become known.
package fabric
