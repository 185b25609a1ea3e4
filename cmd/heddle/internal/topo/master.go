package topo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
)

// app is topo-master's AppLabel.
const app = "heddle-topo-master"

const (
	// timeout bounds a request to --server.
	timeout = 30 * time.Second
	// maxAnswer is the longest answer that is read, in bytes: that of 100,000
	// nodes is a quarter of it.
	maxAnswer = 128 << 20
)

// master is the flags that name where topo-master is and, for one with
// --tls-dir and --authenticate, how to ask it.
type master struct {
	cluster                       cluster.Flags
	server, namespace             string
	tokenFile, caFile, serverName string
	// found is the client that answered, if any.
	found client
}

// client asks topo-master by GET: directly, or through the API server.
type client interface {
	get(ctx context.Context, path, kind string) ([]byte, error)
}

// register adds the flags to a command and to those below it.
func (m *master) register(c *cobra.Command) {
	set := c.PersistentFlags()
	set.StringVar(&m.server, "server", "",
		"`URL` of topo-master, such as http://10.0.0.7:9001; default: its Service, through the API server")
	set.StringVar(&m.namespace, "service-namespace", "",
		"`namespace` of topo-master's Service; default: where one is found")
	set.StringVar(&m.tokenFile, "token-file", "",
		"`file` with a bearer token for --server, such as of kubectl create token --audience=heddle-topo-master")
	set.StringVar(&m.caFile, "ca-file", "",
		"`file` with the authorities, in PEM, that sign --server's certificate; default those of the system")
	set.StringVar(&m.serverName, "tls-server-name", "",
		"`name` in the certificate of --server, if it is asked at another address, such as a forwarded port")
	m.cluster.Register(c)
}

// get asks topo-master, which it finds first.
func (m *master) get(c *cobra.Command, path, kind string) ([]byte, error) {
	if m.found == nil {
		var err error
		if m.found, err = m.find(c); err != nil {
			return nil, err
		}
	}
	return m.found.get(c.Context(), path, kind)
}

// find finds topo-master. An error of the command line names the command.
func (m *master) find(c *cobra.Command) (client, error) {
	secrets := []struct{ name, value string }{
		{"token-file", m.tokenFile}, {"ca-file", m.caFile}, {"tls-server-name", m.serverName},
	}
	var base *url.URL
	if m.server != "" {
		var err error
		base, err = url.Parse(m.server)
		if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
			return nil, cli.UsageErrorf(c, "invalid --server %q: want a URL such as http://10.0.0.7:9001", m.server)
		}
	}
	for _, flag := range secrets {
		switch {
		case flag.value == "":
		case base == nil:
			return nil, cli.UsageErrorf(c, "--%s is for --server: the API server authenticates topo-master, "+
				"and passes no token on", flag.name)
		case base.Scheme != "https":
			return nil, cli.UsageErrorf(c, "--%s is for a --server of https://", flag.name)
		}
	}
	if base != nil {
		return m.direct(base)
	}
	api, err := m.cluster.Client()
	if err != nil {
		return nil, err
	}
	return m.service(c.Context(), api)
}

// direct asks only that server: a token is not for where a redirect leads.
func (m *master) direct(base *url.URL) (client, error) {
	transport, err := rest.TransportFor(&rest.Config{
		BearerTokenFile: m.tokenFile, TLSClientConfig: rest.TLSClientConfig{CAFile: m.caFile, ServerName: m.serverName},
	})
	if err != nil {
		return nil, fmt.Errorf("read --token-file and --ca-file: %w", err)
	}
	return &direct{base: base, client: &http.Client{
		Transport: transport, Timeout: timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// service finds topo-master's Service by its label.
func (m *master) service(ctx context.Context, api rest.Interface) (client, error) {
	list, err := cluster.Read[corev1.ServiceList](ctx, api.Get().Namespace(m.namespace).Resource("services").
		Param("labelSelector", cluster.AppLabel+"="+app), "Services")
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		s := &list.Items[i]
		for _, port := range s.Spec.Ports {
			name := fmt.Sprintf("%s:%d", s.Name, port.Port)
			if port.Name == "https" {
				name = "https:" + name
			}
			return &proxied{client: api, namespace: s.Namespace, name: name}, nil
		}
	}
	return nil, errors.New("no Service with label " + cluster.AppLabel + "=" + app +
		": is topoDiscovery.deploy on? Else give --server")
}

// direct asks a URL.
type direct struct {
	base   *url.URL
	client *http.Client
}

func (d *direct) get(ctx context.Context, path, kind string) ([]byte, error) {
	to := d.base.JoinPath(path)
	if kind != "" {
		to.RawQuery = url.Values{"kind": {kind}}.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, to.String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask topo-master: %w", err)
	}
	resp, err := d.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask topo-master: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read topo-master's answer: %w", err)
	case len(body) > maxAnswer:
		return nil, fmt.Errorf("topo-master's answer is longer than %d bytes", maxAnswer)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("topo-master answers %s: %.200s%s",
			resp.Status, strings.TrimSpace(string(body)), remedy(resp.StatusCode))
	}
	return body, nil
}

// remedy returns the advice for an answer of topo-master, or an empty string.
func remedy(code int) string {
	switch code {
	case http.StatusUnauthorized:
		return "\nGive a token with --token-file: kubectl create token SERVICEACCOUNT --audience=heddle-topo-master"
	case http.StatusForbidden:
		return "\nThe token's user needs get on the path: nonResourceURLs of a ClusterRole"
	case http.StatusServiceUnavailable:
		return "\nTry again in some seconds: topo-master reads the cluster first"
	}
	return ""
}

// proxied asks through the API server.
type proxied struct {
	client          rest.Interface
	namespace, name string
}

func (p *proxied) get(ctx context.Context, path, kind string) ([]byte, error) {
	req := p.client.Get().Namespace(p.namespace).Resource("services").Name(p.name).SubResource("proxy").
		Suffix(strings.Split(strings.Trim(path, "/"), "/")...)
	if kind != "" {
		req = req.Param("kind", kind)
	}
	body, err := req.DoRaw(ctx)
	if apierrors.IsUnauthorized(err) {
		return nil, fmt.Errorf("ask Service %s/%s: %w: if topo-master asks for a token, "+
			"the API server passes none on: give --server and --token-file", p.namespace, p.name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("ask Service %s/%s: %w", p.namespace, p.name, err)
	}
	return body, nil
}
