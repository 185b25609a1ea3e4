// Package informers keeps what topo-master uses of Nodes, NodeTopologies and pods,
// as they are in the API server.
//
// It owns the watches, what is dropped of every object before it is kept, and
// which report is believed to be about which node. It groups nothing, decides
// nothing about a node's state and writes nothing.
//
// A watch is a client-go reflector, the part of an informer that lists,
// watches, and recovers. What stands behind a reflector in a shared informer, a
// queue and a store of whole objects, is here one map of the changes that
// nobody has taken yet: the fabric's map is the store.
package informers
