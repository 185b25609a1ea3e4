package uninstall

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/master/export"
)

const crdPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"

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
		export.KAIGroup: export.TopologiesResource, v1alpha1.GroupName: v1alpha1.Plural,
	} {
		selector := export.ManagedByKey + "=" + export.ManagedBy
		if group == v1alpha1.GroupName {
			selector = ""
		}
		var versions metav1.APIGroup
		there, err := u.read(ctx, "/apis/"+group, &versions)
		if err == nil && there {
			err = u.remove(ctx, "/apis/"+versions.PreferredVersion.GroupVersion+"/"+plural, selector)
		}
		if err != nil {
			return err
		}
	}
	u.progress("reports, exports and leases deleted")
	return u.deleteCRDs(ctx)
}

// deleteCRDs deletes the CRD of reports, and the CRDs of PodGroups that the release created.
func (u *uninstall) deleteCRDs(ctx context.Context) error {
	if !u.crds {
		return nil
	}
	if err := u.remove(ctx, crdPath+v1alpha1.Plural+"."+v1alpha1.GroupName, ""); err != nil {
		return err
	}
	for _, group := range []string{wellknown.PodGroupAPIXK8s, wellknown.PodGroupAPI} {
		var crd metav1.PartialObjectMetadata
		path := crdPath + wellknown.PodGroups + "." + group
		there, err := u.read(ctx, path, &crd)
		if err == nil && there && u.release != "" && crd.Annotations["meta.helm.sh/release-name"] == u.release {
			err = u.remove(ctx, path, "")
		}
		if err != nil {
			return err
		}
	}
	return nil
}
