//go:build e2e && linux

package devices

import (
	"encoding/pem"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// What the gateway does with requests.
const (
	apiServes int32 = iota
	// apiBusy answers three requests of four with 429, as priority and fairness does.
	apiBusy
	// apiExpired ends watches from a version on with 410, as after a compaction of etcd.
	apiExpired
	// apiSilent takes requests and does not answer.
	apiSilent
)

// gateway stands between heddle's daemons and the API server, which it asks as
// the cluster's administrator. It serves HTTP/2, as the API server does.
type gateway struct {
	server *httptest.Server
	proxy  *httputil.ReverseProxy
	mode   atomic.Int32
	// requests counts all, faults those that it did not pass on.
	requests, faults atomic.Int64
	kubeconfig       string
}

func newGateway(listener net.Listener, config *rest.Config, dir string) (*gateway, error) {
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, err
	}
	target, err := url.Parse(config.Host)
	if err != nil {
		return nil, err
	}
	g := &gateway{kubeconfig: filepath.Join(dir, "gateway.kubeconfig")}
	g.proxy = &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: transport, FlushInterval: -1, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		// A dead API server closes connections.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	g.server = httptest.NewUnstartedServer(g)
	_ = g.server.Listener.Close()
	g.server.Listener, g.server.EnableHTTP2 = listener, true
	g.server.StartTLS()
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["gateway"] = &clientcmdapi.Cluster{
		Server: "https://" + listener.Addr().String(),
		CertificateAuthorityData: pem.EncodeToMemory(
			&pem.Block{Type: "CERTIFICATE", Bytes: g.server.Certificate().Raw}),
	}
	kubeconfig.Contexts["gateway"] = &clientcmdapi.Context{Cluster: "gateway"}
	kubeconfig.CurrentContext = "gateway"
	return g, clientcmd.WriteToFile(*kubeconfig, g.kubeconfig)
}

// ServeHTTP implements [http.Handler].
func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := g.requests.Add(1)
	mode := g.mode.Load()
	query := r.URL.Query()
	from := query.Get("resourceVersion")
	switch {
	case mode == apiBusy && n%4 != 0:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many requests", http.StatusTooManyRequests)
	case mode == apiExpired && query.Has("watch") && from != "" && from != "0":
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintln(w, `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,`+
			`"message":"too old resource version"}}`)
	case mode == apiSilent:
		<-r.Context().Done() // The client gives up, or its connection is closed.
	default:
		g.proxy.ServeHTTP(w, r)
		return
	}
	g.faults.Add(1)
}

// drop closes all connections, and with them all watches.
func (g *gateway) drop() { g.server.CloseClientConnections() }

func (g *gateway) close() error {
	g.drop()
	g.server.Close()
	return os.Remove(g.kubeconfig)
}
