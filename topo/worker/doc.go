// Package worker discovers where the links of its node end and reports it in the
// node's NodeTopology.
//
// It owns the pass: ask every source, merge their answers, and publish it if
// it differs from what was published. It owns the memory between passes: a
// switch that was seen stays, with less confidence, while its link is down or
// it does not answer. It groups nothing, takes part in no election and knows of no other
// node; it reads no hardware but through the packages below it, and the
// machine comes from discovery.
package worker
