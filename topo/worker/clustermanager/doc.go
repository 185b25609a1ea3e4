// Package clustermanager asks a server which groups a node is in.
//
// It owns the question, the form of the answer and their bounds: HTTPS only,
// a time limit, no redirect to another host, at most 8 MiB, nothing but JSON.
// The last good answer stays, with its age, whatever the server does next. It
// asks beside the passes of the worker, so that a slow server delays no pass.
// docs/topology-sources.md describes the exchange for those who write a server.
package clustermanager
