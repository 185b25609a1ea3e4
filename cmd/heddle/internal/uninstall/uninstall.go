// Package uninstall implements `heddle uninstall`: it removes everything that an installation
// leaves in Nodes and on hosts. The chart runs it before its objects are deleted.
//
// Daemons are deleted first, since they would write removed data again. The pods of the
// device plugin's DaemonSet clean their hosts, with other arguments; objects of the API server
// are cleaned from here, so that Nodes that are not ready are clean too.
package uninstall

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
	"github.com/heddle-dev/heddle/topo/master/export"
)

const (
	// poll is the interval between two looks at the daemons.
	poll = time.Second
	// manager is the field manager of what is written.
	manager = "heddle-uninstall"
	crdPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"
)

// uninstall holds the options and the clients of one run.
type uninstall struct {
	namespace, release string
	force, crds        bool

	client rest.Interface
	out    io.Writer
}

// NewCommand returns `heddle uninstall`.
func NewCommand() *cobra.Command {
	var at cluster.Flags
	u := &uninstall{}
	c := &cobra.Command{
		Use: "uninstall", Short: "Remove heddle's traces from Nodes and hosts", Args: cobra.NoArgs,
		Long: `Remove heddle's traces from Nodes and hosts: labels, taints, annotations,
conditions, CDI specs and other files, leases, reports and exports. The daemons
are deleted first.

helm uninstall runs this command. Run it by hand where Helm runs no hooks, such
as with Argo CD, and after an uninstall without it. It fails while pods have
devices of heddle, which could not start again, unless --force is given.`,
	}
	at.Register(c)
	flags := c.Flags()
	flags.BoolVar(&u.force, "force", false, "continue even if pods have devices of heddle")
	flags.BoolVar(&u.crds, "crds", false, "delete the CRDs too, with all objects of their kinds")
	flags.StringVar(&u.release, "release", "", "`name` of the Helm release: --crds deletes its PodGroup CRDs")
	c.RunE = func(c *cobra.Command, _ []string) error {
		client, err := at.Client()
		if err != nil {
			return err
		}
		u.client, u.out, u.namespace = client, c.OutOrStdout(), at.Given(cluster.System)
		return u.run(c.Context())
	}
	return c
}

func (u *uninstall) run(ctx context.Context) error {
	plugin, err := u.daemonSet(ctx, devicePlugin)
	if err != nil {
		return err
	}
	served, err := u.resources(ctx, plugin)
	if err != nil {
		return err
	}
	if err := u.checkHolders(ctx, served); err != nil {
		return err
	}
	if err := u.stop(ctx, plugin); err != nil {
		return err
	}
	if err := u.cleanNodes(ctx); err != nil {
		return err
	}
	return u.deleteObjects(ctx)
}

// deleteObjects deletes reports, exports and leases, and CRDs if requested.
func (u *uninstall) deleteObjects(ctx context.Context) error {
	for _, name := range []string{topoMaster, scheduler} {
		path := "/apis/coordination.k8s.io/v1/namespaces/" + u.namespace + "/leases/" + name
		if err := u.remove(ctx, path, ""); err != nil {
			return err
		}
	}
	for group, plural := range map[string]string{
		export.HyperNodeGroup: export.HyperNodeResource, export.KueueGroup: export.TopologiesResource,
		export.KAIGroup: export.TopologiesResource, resourceapi.GroupName: "resourceslices",
		v1alpha1.GroupName: v1alpha1.Plural,
	} {
		if err := u.deleteExports(ctx, group, plural); err != nil {
			return err
		}
	}
	u.progress("reports, exports and leases deleted")
	if !u.crds {
		return nil
	}
	if err := u.remove(ctx, crdPath+v1alpha1.Plural+"."+v1alpha1.GroupName, ""); err != nil {
		return err
	}
	for _, group := range []string{wellknown.PodGroupAPIXK8s, wellknown.PodGroupAPI} {
		var crd metav1.PartialObjectMetadata
		path := crdPath + wellknown.PodGroups + "." + group
		there, err := cluster.ReadPath(ctx, u.client, path, "", &crd)
		if err == nil && there && u.release != "" && crd.Annotations["meta.helm.sh/release-name"] == u.release {
			err = u.remove(ctx, path, "")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// deleteExports deletes what topo-master wrote of a kind, and all reports.
func (u *uninstall) deleteExports(ctx context.Context, group, plural string) error {
	selector := export.ManagedByKey + "=" + export.ManagedBy
	if group == v1alpha1.GroupName {
		selector = ""
	}
	var versions metav1.APIGroup
	there, err := cluster.ReadPath(ctx, u.client, "/apis/"+group, "", &versions)
	if err == nil && there {
		err = u.remove(ctx, "/apis/"+versions.PreferredVersion.GroupVersion+"/"+plural, selector)
	}
	// The chart's job may delete ResourceSlices only where claims are on; elsewhere topo-master wrote no slices.
	if group == resourceapi.GroupName && apierrors.IsForbidden(err) {
		return nil
	}
	return err
}

// progress reports progress, in a hook to the Job's log.
func (u *uninstall) progress(format string, args ...any) {
	_, _ = fmt.Fprintf(u.out, format+"\n", args...) // The outcome is the exit code.
}

// until polls until the answer is empty, and reports each other answer once.
func (u *uninstall) until(ctx context.Context, ask func(context.Context) (waitsFor string, err error)) error {
	last := ""
	err := wait.PollUntilContextCancel(ctx, poll, true, func(ctx context.Context) (bool, error) {
		waitsFor, err := ask(ctx)
		if err == nil && waitsFor != last && waitsFor != "" {
			u.progress("waiting: %s", waitsFor)
		}
		last = waitsFor
		return waitsFor == "", err
	})
	if err != nil && last != "" {
		return fmt.Errorf("%s: %w", last, err)
	}
	return err
}

// remove deletes an object, or all of a kind that a selector matches. A missing object or kind is
// not an error.
func (u *uninstall) remove(ctx context.Context, path, selector string) error {
	request := u.client.Delete().AbsPath(path).SetHeader("Accept", "application/json")
	if selector != "" {
		request = request.Param("labelSelector", selector)
	}
	if err := request.Do(ctx).Error(); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete %s: %w", path, err)
	}
	return nil
}

func (u *uninstall) patch(ctx context.Context, kind types.PatchType, path, fieldManager string, patch any) error {
	body, err := json.Marshal(patch)
	if err == nil {
		err = u.client.Patch(kind).AbsPath(path).SetHeader("Accept", "application/json").
			Param("fieldManager", fieldManager).Body(body).Do(ctx).Error()
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// each calls use with every Node, or every pod of a namespace, that a selector matches, page by page.
func each[T any](ctx context.Context, client rest.Interface, namespace, resource, selector string, use func(*T)) error {
	pages := func(ctx context.Context, page metav1.ListOptions) (runtime.Object, error) {
		list, err := client.Get().Namespace(namespace).Resource(resource).
			VersionedParams(&page, metav1.ParameterCodec).Do(ctx).Get()
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", resource, err)
		}
		return list, nil
	}
	return pager.New(pages).EachListItem(ctx, metav1.ListOptions{LabelSelector: selector}, func(o runtime.Object) error {
		if v, ok := any(o).(*T); ok {
			use(v)
		}
		return nil
	})
}
