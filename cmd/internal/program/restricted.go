package program

import (
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/heddle-dev/heddle/internal/httpserve"
	"github.com/heddle-dev/heddle/internal/kube/tokenauth"
)

// Restricted is what a daemon answers to its node, and to those elsewhere whose token may get
// the path: what names pods.
type Restricted struct {
	// Metrics are in /metrics beside the others.
	Metrics prometheus.Gatherer
	// Path below /v1/ has an answer of its own.
	Path    string
	Handler http.Handler
	// Open admits everyone. Otherwise Auth admits, which is nil where no API server is known:
	// then the node alone is admitted.
	Open bool
	Auth *tokenauth.Auth
}

// restricting is a daemon, or a process of several of which one has begun to serve.
type restricting interface {
	// restricted is nil while there is nothing.
	restricted() *Restricted
}

func (r *Restricted) restricted() *Restricted { return r }

// admit returns 0, or the HTTP status to reject a request with. The daemons are on the host's
// network, so what connects from a loopback address is a process of the node, or the kubelet
// for a port-forward that the API server has authorized. It is the connection's address:
// headers are the client's.
func (r *Restricted) admit(request *http.Request) int {
	switch {
	case r.Open || httpserve.Source(request.RemoteAddr).IsLoopback():
		return 0
	case r.Auth == nil:
		return http.StatusServiceUnavailable
	}
	return r.Auth.Admit(request)
}

// metrics answers /metrics: everyone gets those of g. Who is admitted has places of its own,
// which others cannot take.
func metrics(g prometheus.Gatherer, of restricting) http.Handler {
	scrape := func(g prometheus.Gatherer) http.Handler {
		return promhttp.HandlerFor(g, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes / 2})
	}
	pods := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return of.restricted().Metrics.Gather() })
	open, all := scrape(g), scrape(prometheus.Gatherers{g, pods})
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if r := of.restricted(); r != nil && r.admit(request) == 0 {
			all.ServeHTTP(w, request)
			return
		}
		open.ServeHTTP(w, request)
	})
}

// paths answers what is below /v1/.
func paths(of restricting) http.HandlerFunc {
	return func(w http.ResponseWriter, request *http.Request) {
		r := of.restricted()
		if r == nil || request.URL.Path != r.Path {
			http.NotFound(w, request)
			return
		}
		code := r.admit(request)
		if code == 0 {
			r.Handler.ServeHTTP(w, request)
			return
		}
		if code == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", "Bearer")
		}
		http.Error(w, rejection(code, r.Path), code)
	}
}

// rejection is what a client reads who is not admitted.
func rejection(code int, path string) string {
	how := fmt.Sprintf("ask at a loopback address of the node, by `kubectl port-forward`, or with the bearer token "+
		"of a user who may get the path %s, as ClusterRole heddle-metrics-reader lets", path)
	switch code {
	case http.StatusUnauthorized:
		return "no token that the API server knows: " + how
	case http.StatusForbidden:
		return "the token's user may not get the path: " + how
	}
	return "the API server cannot be asked about the token now: " + how
}
