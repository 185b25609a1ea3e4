// Package cluster reads Nodes, their pods and what their device plugins report
// from the API server, for commands that explain them. It writes nothing.
package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/internal/kube"
)

const (
	// timeout bounds each request.
	timeout = 30 * time.Second
	// completionTimeout bounds a request that a shell waits for.
	completionTimeout = 3 * time.Second
)

// Flags choose the API server, as kubectl's do.
type Flags struct {
	kubeconfig string
	overrides  clientcmd.ConfigOverrides
}

// Register adds the flags to a command and to those below it. `heddle options` shows them, not each command.
func (f *Flags) Register(c *cobra.Command) {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.RegisterVisible(set)
	set.VisitAll(func(flag *pflag.Flag) { flag.Hidden = true })
	c.PersistentFlags().AddFlagSet(set)
	_ = c.RegisterFlagCompletionFunc("context", f.completeContexts) // It fails only for a flag that is not there.
}

// RegisterVisible adds the flags to a set.
func (f *Flags) RegisterVisible(set *pflag.FlagSet) {
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "`file` with the API server's address and the credentials; "+
		"default $KUBECONFIG, then ~/.kube/config, then the pod's service account")
	var flags clientcmd.ConfigOverrideFlags
	flags.CurrentContext.LongName, flags.CurrentContext.Description = "context", "`name` of the kubeconfig's context"
	flags.Timeout.LongName, flags.Timeout.Description = "request-timeout",
		"how `long` one request to a server may take, such as 5s; default 30s, 0: no limit"
	user, server, context := &flags.AuthOverrideFlags, &flags.ClusterOverrideFlags, &flags.ContextOverrideFlags
	user.Impersonate.LongName, user.Impersonate.Description = "as", "`user` to impersonate"
	user.ImpersonateGroups.LongName = "as-group"
	user.ImpersonateGroups.Description = "`group` to impersonate, may be repeated"
	server.APIServer.LongName, server.APIServer.ShortName = "server", "s"
	server.APIServer.Description = "`URL` of the API server"
	context.ClusterName.LongName, context.ClusterName.Description = "cluster", "`name` of the kubeconfig's cluster"
	context.Namespace.LongName, context.Namespace.ShortName = "namespace", "n"
	context.Namespace.Description = "`namespace` of a pod or gang; " +
		"of heddle itself (status, support-bundle, uninstall, version): default heddle-system"
	clientcmd.BindOverrideFlags(&f.overrides, set, flags)
}

// config reads the kubeconfig by the rules of kubectl: $KUBECONFIG may be a
// list of files, which are merged.
func (f *Flags) config() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.kubeconfig
	rules.WarnIfAllMissing = false
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &f.overrides)
}

// Namespace returns where an object is that is named without one: the context's, as for kubectl.
func (f *Flags) Namespace() (string, error) {
	namespace, _, err := f.config().Namespace()
	if err != nil {
		return "", fmt.Errorf("read kubeconfig: %w", err)
	}
	return namespace, nil
}

// Given returns the value of --namespace, or a default.
func (f *Flags) Given(namespace string) string {
	return cmp.Or(f.overrides.Context.Namespace, namespace)
}

// System is the namespace of heddle's daemons.
const System = "heddle-system"

// Client makes a client for core/v1.
func (f *Flags) Client() (*Client, error) {
	config, err := f.config().ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, errors.New("no API server to ask: give --kubeconfig or --server, or set $KUBECONFIG")
	case err != nil:
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	if f.overrides.Timeout == "" {
		config.Timeout = timeout
	}
	client, err := kube.ClientFor(config, "heddle")
	if err != nil {
		return nil, err
	}
	return &Client{client, config}, nil
}

func (f *Flags) completeContexts(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var names []cobra.Completion
	if config, err := f.config().RawConfig(); err == nil {
		for name := range config.Contexts {
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// CompleteNodes offers the names of the Nodes to the shell, as the value of a
// flag or as the first argument.
func (f *Flags) CompleteNodes(
	c *cobra.Command, args []string, _ string,
) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	client, err := f.Client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(c.Context(), completionTimeout)
	defer cancel()
	// What the API server's cache has is enough, and quicker.
	list, err := Read[corev1.NodeList](ctx, client.Get().Resource("nodes").Param("resourceVersion", "0"), "Nodes")
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names := make([]cobra.Completion, 0, len(list.Items))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// NodeFlag adds --node to a command.
func (f *Flags) NodeFlag(c *cobra.Command, value, usage string) *string {
	name := c.Flags().String("node", value, usage)
	_ = c.RegisterFlagCompletionFunc("node", f.CompleteNodes) // It fails only for a flag that is not there.
	return name
}

// AppLabel is the pod label with the program's name.
const AppLabel = "app.kubernetes.io/name"

// Runs reports whether a pod of a node runs one of that node's daemons.
func Runs(p *corev1.Pod, daemon string) bool { return p.Labels[AppLabel] == daemon }

// Ended reports whether no container of a pod runs any more, nor will.
func Ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// IsStatic reports whether a pod is the kubelet's own, which no scheduler and no controller has.
func IsStatic(p *corev1.Pod) bool {
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	return mirror
}

// IsReady reports whether a pod is ready.
func IsReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// Read sends a request, and decodes the answer; what names the object in an error.
func Read[T any, P interface {
	*T
	runtime.Object
}](ctx context.Context, request *rest.Request, what string,
) (P, error) {
	into := P(new(T))
	if err := request.Do(ctx).Into(into); err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	return into, nil
}

// ConfigNames returns the names of the ConfigMaps with the configuration that a pod reads; without one those that
// the chart's daemons read. A key of a later one replaces that of an earlier one.
func ConfigNames(spec *corev1.PodSpec) (names []string) {
	for _, v := range spec.Volumes {
		switch {
		case v.Name == "config" && v.ConfigMap != nil:
			return []string{v.ConfigMap.Name}
		case v.Name == "config" && v.Projected != nil:
			for _, source := range v.Projected.Sources {
				if source.ConfigMap != nil {
					names = append(names, source.ConfigMap.Name)
				}
			}
			return names
		}
	}
	return []string{"heddle-device-config", "metax-device-config"}
}

// ConfigFiles reads the keys of ConfigMaps, none of one that does not exist.
func ConfigFiles(
	ctx context.Context, client rest.Interface, namespace string, names ...string,
) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, name := range names {
		object, err := Read[corev1.ConfigMap](ctx,
			client.Get().Namespace(namespace).Resource("configmaps").Name(name), "ConfigMap "+namespace+"/"+name)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for key, text := range object.Data {
			files[key] = []byte(text)
		}
	}
	return files, nil
}

// ReadPath reads an object, or a list of those that a selector takes, of any API group
// into what JSON decodes into, and returns false if the object or its kind does not exist.
func ReadPath(ctx context.Context, client rest.Interface, path, selector string, into any) (bool, error) {
	request := client.Get().AbsPath(path).SetHeader("Accept", "application/json")
	if selector != "" {
		request = request.Param("labelSelector", selector)
	}
	body, err := request.DoRaw(ctx)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		return false, fmt.Errorf("read %s: %w", path, err)
	}
	return true, nil
}

// Node reads a Node.
func Node(ctx context.Context, client rest.Interface, name string) (*corev1.Node, error) {
	return Read[corev1.Node](ctx, client.Get().Resource("nodes").Name(name), "Node "+name)
}

// Pods lists the pods that are bound to a Node.
func Pods(ctx context.Context, client rest.Interface, node string) (*corev1.PodList, error) {
	return Read[corev1.PodList](ctx,
		client.Get().Resource("pods").Param("fieldSelector", "spec.nodeName="+node), "pods of Node "+node)
}

// Pod returns any pod of these programs of heddle, or nil.
func Pod(ctx context.Context, client rest.Interface, programs ...string) (*corev1.Pod, error) {
	names := strings.Join(programs, ", ")
	request := client.Get().Resource("pods").Param("labelSelector", AppLabel+" in ("+names+")").Param("limit", "1")
	list, err := Read[corev1.PodList](ctx, request, "pods of "+names)
	if err != nil || len(list.Items) == 0 {
		return nil, err
	}
	return &list.Items[0], nil
}

const (
	devicePlugin = "heddle-device-plugin"
	// portKey is the pod annotation with the port of the metrics address.
	portKey     = "prometheus.io/port"
	defaultPort = "9102"
	// reportTimeout bounds the wait for the device plugin: a command goes on
	// without it.
	reportTimeout = 5 * time.Second
)

// Report returns the report of a Node's device plugin, through the API server. It
// needs the right to create pods/portforward: to the device plugin the one who asks is the
// kubelet, on the node's loopback, as the API server's pod proxy passes on no token.
func Report(ctx context.Context, client *Client, node string) (*report.Report, error) {
	pods, err := Pods(ctx, client, node)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	for i := range pods.Items {
		p := &pods.Items[i]
		if !Runs(p, devicePlugin) {
			continue
		}
		body, err := client.get(ctx, p, cmp.Or(p.Annotations[portKey], defaultPort), report.Path)
		if err != nil {
			return nil, fmt.Errorf("ask pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		var got report.Report
		if err := json.Unmarshal(body, &got); err != nil {
			return nil, fmt.Errorf("decode the report of pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		if got.Node != node {
			return nil, fmt.Errorf("pod %s/%s reports node %q", p.Namespace, p.Name, got.Node)
		}
		return &got, nil
	}
	return nil, errors.New(devicePlugin + " has no pod on it")
}
