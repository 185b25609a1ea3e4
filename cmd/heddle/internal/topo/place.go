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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
)

// app is topo-master's AppLabel.
const app = "heddle-topo-master"

const (
	// timeout bounds each request.
	timeout = 30 * time.Second
	// maxAnswer is the longest answer that is read, in bytes: that of 100,000
	// nodes is a quarter of it.
	maxAnswer = 128 << 20
)

// place is where topo-master is.
type place struct {
	cluster   cluster.Flags
	server    string
	namespace string
	secrets   secrets
}

func (p *place) register(set *cli.FlagSet) {
	set.StringVar(&p.server, "server", "",
		"`URL` of topo-master, such as http://10.0.0.7:9001; default: its Service, through the API server")
	set.StringVar(&p.namespace, "namespace", "", "`NAME` of the Service's namespace; default: where one is found")
	p.secrets.register(set)
	p.cluster.Register(set.FlagSet)
}

func (p *place) asker(ctx context.Context) (asker, error) {
	if p.server != "" {
		base, err := url.Parse(p.server)
		if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
			return nil, cli.Usagef("topo", "topo: --server %q is no URL such as http://10.0.0.7:9001", p.server)
		}
		if err := p.secrets.check(base); err != nil {
			return nil, err
		}
		client, err := p.secrets.client()
		if err != nil {
			return nil, err
		}
		return &direct{base: base, client: client}, nil
	}
	if err := p.secrets.check(nil); err != nil {
		return nil, err
	}
	client, err := p.cluster.Client()
	if err != nil {
		return nil, err
	}
	return p.service(ctx, client)
}

// service finds topo-master's Service by its label.
func (p *place) service(ctx context.Context, client rest.Interface) (asker, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var list corev1.ServiceList
	err := client.Get().Namespace(p.namespace).Resource("services").
		Param("labelSelector", cluster.AppLabel+"="+app).Do(ctx).Into(&list)
	if err != nil {
		return nil, fmt.Errorf("list Services: %w", err)
	}
	for i := range list.Items {
		s := &list.Items[i]
		for _, port := range s.Spec.Ports {
			name := fmt.Sprintf("%s:%d", s.Name, port.Port)
			if port.Name == "https" {
				name = "https:" + name
			}
			return &proxied{client: client, namespace: s.Namespace, name: name}, nil
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
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
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
		return nil, fmt.Errorf("topo-master answers %s: %.200s", resp.Status, strings.TrimSpace(string(body)))
	}
	return body, nil
}

// proxied asks through the API server.
type proxied struct {
	client          rest.Interface
	namespace, name string
}

func (p *proxied) get(ctx context.Context, path, kind string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req := p.client.Get().Namespace(p.namespace).Resource("services").Name(p.name).SubResource("proxy").
		Suffix(strings.Split(strings.Trim(path, "/"), "/")...)
	if kind != "" {
		req = req.Param("kind", kind)
	}
	body, err := req.DoRaw(ctx)
	if apierrors.IsUnauthorized(err) {
		return nil, fmt.Errorf("ask Service %s/%s: %w: if it is topo-master that wants a token, "+
			"the API server passes none on: give --server and --token-file", p.namespace, p.name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("ask Service %s/%s: %w", p.namespace, p.name, err)
	}
	return body, nil
}
