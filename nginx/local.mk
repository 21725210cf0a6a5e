# The nginx site: templates and the script that fills them from penstock.conf.
nginxsitedir = $(pkgdatadir)/nginx
dist_nginxsite_DATA = nginx/site.conf.in nginx/instance.conf.in
dist_nginxsite_SCRIPTS = nginx/penstock-site
