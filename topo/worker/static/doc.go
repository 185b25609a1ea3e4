// Package static reads a file in which people write which groups a node is in
// and which switch each of its rails leads to.
//
// It owns the file's form and what is wrong with it: it is strict, and names
// the line of every fault. A file with a fault changes nothing; the last good
// one stays. docs/topology-sources.md describes the form.
package static
