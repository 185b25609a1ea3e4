// Package placement finds a place for every pod of a gang on a map of the
// cluster, or tells in people's words why there is none.
package placement
