package topo

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// app is topo-master's AppLabel.
const app = "heddle-topo-master"

// timeout bounds a request to --topo-master.
const timeout = 30 * time.Second

// Master is the flags that name where topo-master is and, for one with
// --tls-dir and --authenticate, how to ask it.
type Master struct {
	// Cluster is the flags of the API server.
	Cluster                       cluster.Flags
	server                        string
	tokenFile, caFile, serverName string
	// client reaches topo-master below a path, directly or through the API server, once it is found; name is for
	// errors.
	client     rest.Interface
	base, name string
}

// Register adds the flags to a command and to those below it. `heddle options` shows them.
func (m *Master) Register(c *cobra.Command) {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	m.visible(set)
	set.VisitAll(func(flag *pflag.Flag) { flag.Hidden = true })
	c.PersistentFlags().AddFlagSet(set)
	m.Cluster.Register(c)
}

// RegisterVisible adds the flags of topo-master to a set, for help.
func RegisterVisible(set *pflag.FlagSet) { new(Master).visible(set) }

func (m *Master) visible(set *pflag.FlagSet) {
	set.StringVar(&m.server, "topo-master", "",
		"`URL` of topo-master, such as http://10.0.0.7:9001; default: its Service, through the API server")
	set.StringVar(&m.tokenFile, "token-file", "", "`file` with a bearer token for --topo-master")
	set.StringVar(&m.caFile, "ca-file", "", "`file` with the authorities, in PEM, that sign --topo-master's certificate")
	set.StringVar(&m.serverName, "tls-server-name", "",
		"`name` in --topo-master's certificate, if it is asked at another address, such as a forwarded port")
}

// Group returns the names of the nodes of a group that have ports in the fabric.
func (m *Master) Group(c *cobra.Command, name string) (nodes []string, err error) {
	list, err := read[snapshot.PortList](c, m, "/v1/ports", "group", name)
	if err != nil {
		return nil, err
	}
	if list.Omitted > 0 {
		return nil, fmt.Errorf("group %s has %d ports more than topo-master lists: name smaller groups", name, list.Omitted)
	}
	for i := range list.Ports {
		if p := &list.Ports[i]; !p.Foreign && !slices.Contains(nodes, p.Node) {
			nodes = append(nodes, p.Node)
		}
	}
	return nodes, nil
}

// get asks topo-master, which it finds first, with a parameter and its value if any.
func (m *Master) get(c *cobra.Command, path string, parameter ...string) ([]byte, error) {
	if m.client == nil {
		if err := m.find(c); err != nil {
			return nil, err
		}
	}
	request := m.client.Get().AbsPath(m.base, path)
	if len(parameter) > 1 && parameter[1] != "" {
		request = request.Param(parameter[0], parameter[1])
	}
	body, err := request.DoRaw(c.Context())
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		return nil, m.explain(&status.ErrStatus, err)
	}
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", m.name, err)
	}
	return body, nil
}

// explain returns the error of an answer that is not 200.
func (m *Master) explain(s *metav1.Status, err error) error {
	if m.server == "" {
		hint := ""
		if s.Code == http.StatusUnauthorized {
			hint = ": if topo-master asks for a token, the API server passes none on: give --topo-master and --token-file"
		}
		return fmt.Errorf("ask %s: %w%s", m.name, err, hint)
	}
	text := ""
	if s.Details != nil && len(s.Details.Causes) > 0 {
		text = s.Details.Causes[0].Message
	}
	code := int(s.Code)
	return fmt.Errorf("topo-master answers %d %s: %.200s%s", code, http.StatusText(code), text, remedy(code))
}

// find finds topo-master. An error of the command line names the command.
func (m *Master) find(c *cobra.Command) error {
	secret := m.tokenFile+m.caFile+m.serverName != ""
	if m.server == "" && secret {
		return cli.UsageErrorf(c, "--token-file, --ca-file and --tls-server-name are for --topo-master: "+
			"the API server authenticates topo-master, and passes no token on")
	}
	if m.server != "" {
		base, err := url.Parse(m.server)
		switch {
		case err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https":
			return cli.UsageErrorf(c, "invalid --topo-master %q: want a URL such as http://10.0.0.7:9001", m.server)
		case secret && base.Scheme != "https":
			return cli.UsageErrorf(c, "--token-file, --ca-file and --tls-server-name are for a --topo-master of https://")
		}
		return m.direct()
	}
	api, err := m.Cluster.Client()
	if err != nil {
		return err
	}
	return m.service(c.Context(), api)
}

// direct asks only that server: a token is not for where a redirect leads.
func (m *Master) direct() error {
	config := &rest.Config{
		Host: m.server, BearerTokenFile: m.tokenFile, Timeout: timeout,
		TLSClientConfig: rest.TLSClientConfig{CAFile: m.caFile, ServerName: m.serverName},
		ContentConfig: rest.ContentConfig{
			NegotiatedSerializer: serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion(),
		},
	}
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("read --token-file and --ca-file: %w", err)
	}
	transport.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	m.name = "topo-master"
	m.client, err = rest.UnversionedRESTClientForConfigAndClient(config, transport)
	return err
}

// service finds topo-master's Service by its label.
func (m *Master) service(ctx context.Context, api rest.Interface) error {
	list, err := cluster.Read[corev1.ServiceList](ctx, api.Get().Resource("services").
		Param("labelSelector", cluster.AppLabel+"="+app), "Services")
	if err != nil {
		return err
	}
	for i := range list.Items {
		s := &list.Items[i]
		for _, port := range s.Spec.Ports {
			at := fmt.Sprintf("%s:%d", s.Name, port.Port)
			if port.Name == "https" {
				at = "https:" + at
			}
			m.client, m.name = api, "Service "+s.Namespace+"/"+at
			m.base = "/api/v1/namespaces/" + s.Namespace + "/services/" + at + "/proxy"
			return nil
		}
	}
	return errors.New("no Service with label " + cluster.AppLabel + "=" + app +
		": is topoDiscovery.enabled on? Else give --topo-master")
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
